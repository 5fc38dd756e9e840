"""Every strategy against plain gradient descent on its objective, written out; and what each promises."""

import functools

import equinox as eqx
import fleet
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from clairjax import data, federated
from clairjax.federated import Local, Privacy, fit, sgd
from clairjax.federated._fedcp import BANDWIDTHS, discrepancy
from clairjax.federated._fedrod import balanced


RATE, ROUNDS = 0.1, 3
PLAIN = Local(sgd(RATE), batch=None)
LOUD = Privacy(1e6, noise_multiplier=0.0)
HEAD = frozenset({"weight", "bias"})


def start():
    """In float64, where there is one: 1e-9 is far above its rounding, and far below one step."""
    wide = jnp.zeros(()).dtype
    return jax.tree.map(lambda leaf: leaf.astype(wide), fleet.network())


class Plain:
    """The model as a dict of arrays, and gradient descent on some of them; no code of the package."""

    def __init__(self, images, labels):
        self.images, self.labels = images.reshape(len(images), -1), labels
        model = start()
        self.p = {"W": model.dense[0].weight, "b": model.dense[0].bias}
        self.p |= {"weight": model.head.weight, "bias": model.head.bias}

    def features(self, p):
        return jax.nn.relu(self.images @ p["W"].T + p["b"][None])

    def logits(self, p, key=""):
        return self.features(p) @ p[key + "weight"].T + p[key + "bias"][None]

    def entropy(self, logits):
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(self.labels)), self.labels])

    def loss(self, p):
        return self.entropy(self.logits(p))

    def steps(self, number, names=None, loss=None, rate=RATE):
        for _ in range(number):
            slope = jax.grad(loss or self.loss)(self.p)
            moves = names or self.p.keys()
            self.p |= {name: self.p[name] - rate * slope[name] for name in moves}

    def collapse(self, p):
        gram = p["weight"] @ p["weight"].T
        held = jnp.zeros(len(gram)).at[self.labels].set(1.0)
        size = len(gram)
        simplex = jnp.outer(held, held) * (jnp.eye(size) - 1 / size) / jnp.sqrt(size - 1)
        return jnp.linalg.norm(gram / jnp.linalg.norm(gram) - simplex)


BODY = ("W", "b")


def joint(plain):
    plain.steps(ROUNDS)


def fine_tuned(plain):
    plain.steps(ROUNDS + 2)


def alternating(plain, tune=0):
    for _ in range(ROUNDS):
        plain.steps(2, HEAD)
        plain.steps(1, BODY)
    plain.steps(tune, HEAD)


def flute(plain):
    def loss(p):
        square = jnp.mean(jnp.sum(plain.features(p) ** 2, 1))
        return plain.loss(p) + 0.005 * square + 0.0025 * jnp.sum(p["weight"] ** 2) + 0.25 * plain.collapse(p)

    for _ in range(ROUNDS):
        plain.steps(1, loss=loss)
        plain.steps(2, HEAD, loss=loss)
        plain.steps(1, {"weight"}, loss=plain.collapse, rate=0.5)


def private_average(plain):
    plain.steps(ROUNDS)
    plain.steps(2, HEAD)


def multi_task(plain):
    for _ in range(ROUNDS):
        mean = dict(plain.p)
        pull = lambda p, mean=mean: sum(jnp.sum((p[name] - mean[name]) ** 2) for name in p) / 2
        plain.steps(2, loss=lambda p, pull=pull: plain.loss(p) + 0.7 * pull(p))
    plain.steps(2, HEAD)


def additive(plain):
    for _ in range(ROUNDS):
        plain.steps(1, HEAD, rate=0.3)
        plain.steps(1)
    plain.steps(2, HEAD, rate=0.3)


def two_heads(plain):
    """The generic part on the balanced softmax, the personal head on what both say."""
    plain.p |= {"own weight": 0 * plain.p["weight"], "own bias": 0 * plain.p["bias"]}
    counts = jnp.bincount(plain.labels, length=fleet.CLASSES)

    def loss(p):
        generic, fixed = plain.logits(p), jax.lax.stop_gradient(p)
        own = plain.features(fixed) @ p["own weight"].T + p["own bias"][None]
        return plain.entropy(generic + jnp.log(counts)[None]) + plain.entropy(plain.logits(fixed) + own)

    plain.steps(ROUNDS, loss=loss)


STRATEGIES = {
    "FedAvg": (federated.FedAvg(PLAIN), joint),
    "FedAvgFT": (federated.FedAvgFT(PLAIN, tune=2), fine_tuned),
    "FedPer": (federated.FedPer(PLAIN), joint),
    "LGFedAvg": (federated.LGFedAvg(PLAIN, head=lambda m: m.dense), joint),
    "FedRep": (federated.FedRep(PLAIN, head_epochs=2), alternating),
    "Clair": (federated.Clair(PLAIN, layers=lambda m: m.dense, own=lambda m: m.head), joint),
    "FedRoD": (federated.FedRoD(PLAIN), two_heads),
    "Flute": (federated.Flute(PLAIN, head_epochs=2), flute),
    "StandAlone": (federated.StandAlone(PLAIN), joint),
    "DPFedAvg": (federated.DPFedAvg(LOUD, PLAIN, tune=2), private_average),
    "PMTL": (federated.PMTL(LOUD, PLAIN, epochs=2, pull=0.7, tune=2), multi_task),
    "PPSGD": (federated.PPSGD(LOUD, PLAIN, own=Local(sgd(0.3), batch=None), tune=2), additive),
    "Centaur": (federated.Centaur(LOUD, PLAIN, head_epochs=2, tune=2), functools.partial(alternating, tune=2)),
}


COVERED = {"FedAvgFT", "FedPer", "LGFedAvg", "DPFedAvg", "StandAlone"}  # by the code that the others share
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in COVERED else ()) for name in STRATEGIES]


@pytest.fixture(scope="module")
def alone():
    """One client, of 23 samples: two full chunks and a part."""
    images, labels = fleet.images(np.random.default_rng(0), 23)
    rows = data.Split.of([np.arange(23)], width=26)
    return data.Federation(jnp.asarray(images)[..., None], jnp.asarray(labels, jnp.int32), rows, rows, rows, 4)


@pytest.mark.parametrize("name", NAMES)
def test_one_client_without_noise_is_gradient_descent(name, alone):
    """On all samples in each step: the client's own model is where plain gradient descent ends."""
    strategy, reference = STRATEGIES[name]
    found = federated.train(start(), strategy, alone, rounds=ROUNDS, key=jax.random.key(0))
    images = data.scaled(alone.images, jnp.zeros(()).dtype)
    plain = Plain(images, alone.labels)
    with jax.numpy_dtype_promotion("standard"):
        reference(plain)
        logits = plain.logits(plain.p)
        if "own weight" in plain.p:
            logits = logits + plain.logits(plain.p, "own ")
    np.testing.assert_allclose(found.personal(0)(images), logits, rtol=0, atol=1e-9 if WIDE else 1e-5)


WIDE = jnp.zeros(()).dtype == jnp.float64


def test_every_strategy_of_the_door_is_held_to_it():
    """FedCP is held to finite differences, below."""
    classes = {value for value in vars(federated).values() if isinstance(value, type)}
    abstract = {federated.Strategy, federated.PrivateStrategy, federated.FedCP}
    strategies = {each for each in classes if issubclass(each, federated.Strategy)} - abstract
    assert {type(strategy) for strategy, _ in STRATEGIES.values()} == strategies


def test_fedcp_is_gradient_descent_on_its_objective(alone):
    """One step from its definition: what a client uses, and the kernels' distance to the body it received."""
    model, strategy = start(), federated.FedCP(PLAIN)
    key = jax.random.key(0)
    server, own = strategy.start(model, 1, key=jax.random.split(key)[0])
    used = strategy._used(server, own)
    images, labels = data.scaled(alone.images, model.head.weight.dtype), alone.labels

    def objective(parts):
        now = eqx.tree_at(lambda u: (u.model, u.policy), used, parts)
        features, there = now.model.features(images), model.features(images)
        chunks = [slice(0, 10), slice(10, 20), slice(20, 23)]  # a full batch is taken by these
        apart = [len(labels[c]) * _discrepancy(features[c], there[c]) for c in chunks]
        entropy = optax.softmax_cross_entropy_with_integer_labels(now(images), labels).sum()
        return (entropy + 5.0 * sum(apart)) / len(labels)

    parts = used.model, used.policy
    slope = jax.jit(jax.grad(objective))(parts)
    expected = jax.tree.map(lambda leaf, step: leaf - RATE * step, parts, slope)
    found = federated.train(model, strategy, alone, rounds=1, key=key)
    for leaf, other in zip(jax.tree.leaves(tuple(found.server)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-9 if WIDE else 1e-5)
    np.testing.assert_allclose(found.states.weight[0], found.server.model.head.weight, rtol=1e-6)


def _discrepancy(first, second):
    total = 0.0
    for sign, a, b in ((1, first, first), (1, second, second), (-2, first, second)):
        squares = ((a[:, None] - b[None]) ** 2).sum(2)
        total = total + sign * sum(jnp.exp(-squares / 2 / width).mean() for width in BANDWIDTHS)
    return total


def test_the_discrepancy_is_of_the_samples_that_are_there(rng):
    first, second = (jnp.asarray(rng.standard_normal((7, 3))) for _ in range(2))
    here = jnp.arange(7) < 4
    np.testing.assert_allclose(discrepancy(first, second, here), _discrepancy(first[:4], second[:4]), rtol=1e-6)
    assert discrepancy(first, first, here) == 0


def test_the_balanced_softmax_weighs_each_class_by_what_there_is_of_it():
    """With equal logits a sample of class c costs log(n/n_c); classes without samples have no slope."""
    counts, logits = jnp.array([1, 0, 3]), jnp.zeros((2, 4))
    costs, slope = jax.vjp(lambda logits: balanced(logits, jnp.array([0, 2]), counts), logits)
    np.testing.assert_allclose(costs, np.log([4, 4 / 3]), rtol=1e-6)
    np.testing.assert_allclose(
        slope(jnp.ones(2, costs.dtype))[0], [[-0.75, 0, 0.75, 0], [0.25, 0, -0.25, 0]], atol=1e-6
    )


def test_the_mean_is_over_clients_that_differ(clients):
    """By hand: each client's model after its own steps, in the shares that were asked for."""
    strategy = federated.FedAvg(PLAIN)
    found = federated.train(fleet.network(), strategy, clients, rounds=1, key=jax.random.key(2))
    model = fleet.network()
    counts = np.asarray(clients.counts)
    one = lambda k: federated._strategy.one_client(clients, jnp.asarray(k, jnp.int32))
    train = jax.jit(
        lambda k: fit(model, federated._parts.everything(model), one(k), PLAIN, epochs=1, key=jax.random.key(0))[0]
    )
    biases = np.stack([np.asarray(train(k).head.bias) for k in range(len(counts))])
    assert np.ptp(counts) > 0 and np.ptp(biases, 0).max() > 1e-3
    np.testing.assert_allclose(found.server.head.bias, counts @ biases / counts.sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [4, None])
def test_features_computed_once_are_the_same_steps(clients, batch):
    """To rounding: the features are those that each step would have computed."""
    local = fleet.local(batch)
    model, head = fleet.network(), lambda m: m.head
    client = federated._strategy.one_client(clients, jnp.asarray(1, jnp.int32))
    marked = federated.chosen(model, head, "head")
    key = jax.random.key(4)
    once = jax.jit(lambda: federated.fit_head(model, marked, client, local, epochs=3, key=key)[0].head)()
    each = jax.jit(lambda: fit(model, marked, client, local, epochs=3, key=key)[0].head)()
    np.testing.assert_allclose(once.weight, each.weight, rtol=0, atol=1e-6)
    assert abs(once.weight - model.head.weight).max() > 1e-3
