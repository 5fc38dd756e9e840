"""What a run refuses before it computes anything, by name: its arguments, models, settings, strategies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import fleet
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import federated, models
from clairjax.federated import FedAvg, FedCP, FedRoD, Flute, Strategy, Update


KEY = jax.random.key(7)


def run(clients, strategy=None, model=None, **more):
    strategy = FedAvg(fleet.local()) if strategy is None else strategy
    return federated.train(model or fleet.network(), strategy, clients, **{"rounds": 2, "key": KEY} | more)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": []}, r"devices must be a list of JAX devices, at least one and each once, got \[\]\."),
        (
            {"devices": jax.devices()[:1] * 2},
            r"devices must be a list of JAX devices, at least one and each once, got",
        ),
        (
            {"model": lambda images, *, key=None: jnp.zeros((len(images), 4), "float32")},
            r"model must be one with floating arrays to train, got none in a function\.",
        ),
    ],
)
def test_arguments(clients, changed, message):
    with pytest.raises(ValueError, match=message):
        run(clients, **changed)


# Of another type than their annotations say: the suite checks these, a user's process does not.
OTHER_TYPES = {
    "train(None, FedAvg(), None, rounds=1, key=0)": "key must be one key, as jax.random.key(seed) gives, got 0.",
    "train(None, FedAvg(), None, rounds=1, key=None)": "key must be one key, as jax.random.key(seed) gives, got None.",
    "train(None, FedAvg(), None, rounds=1, key=many)": "key must be one key, as jax.random.key(seed) gives, got 3 of them.",  # noqa: E501
    "check_devices(['cpu'])": "devices must be a list of JAX devices, at least one and each once, got ['cpu'].",
    "prepared(DPFedAvg(0.1), None, 1)": "privacy must be a Privacy, got 0.1.",
    "FedAvg(5)": "local must be a Local, got 5.",
    "FedRep(tune=1.5)": "tune must be an integer of at least 0, got 1.5.",
    "Local(0.1)": "optimiser must be one of optax, such as sgd(0.01), got 0.1.",
    "personal('1')": "client must be an integer in 0 … 5, got '1'.",
    "personal(1.5)": "client must be an integer in 0 … 5, got 1.5.",
}
PROGRAM = """
import json, sys, types
import jax
from clairjax.federated import *
from clairjax.federated._check import check_devices
from clairjax.federated._private import prepared
many = jax.random.split(jax.random.key(0), 3)
personal = lambda client: History.personal(types.SimpleNamespace(federation=range(6)), client)
said = []
for call in json.loads(sys.argv[1]):
    try:
        said.append(repr(eval(call)))
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


def test_arguments_of_other_types():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(OTHER_TYPES))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [f"ValueError: {message}" for message in OTHER_TYPES.values()]


@pytest.mark.parametrize("name", ["head_epochs", "tune", "own_epochs"])
def test_numbers_of_epochs(name):
    """Of every strategy that has them, whatever its file."""
    kinds = [each for each in vars(federated).values() if name in getattr(each, "__dataclass_fields__", {})]
    assert kinds
    for kind in kinds:
        private = "privacy" in kind.__dataclass_fields__
        given = {"privacy": federated.Privacy(0.1, noise_multiplier=1.0)} if private else {}
        with pytest.raises(ValueError, match=rf"{name} must be an integer of at least 0, got -1\."):
            kind(**given, **{name: -1})


class Wrapped(eqx.Module):
    """A model that is no classifier."""

    mlp: eqx.nn.MLP

    def __call__(self, images, *, key=None):
        return jax.vmap(self.mlp)(images.reshape(len(images), -1))


@pytest.mark.parametrize("strategy", [Flute(), FedRoD(), FedCP()])
def test_models_without_a_linear_head(strategy):
    """Strategies that write out what a head does take no other."""
    other = Wrapped(eqx.nn.MLP(25, 4, 6, 1, dtype=jnp.float32, key=KEY))
    adapted = models.adapt(fleet.network(), lambda m: (m.head,), 2, key=KEY)
    for model, got in ((other, "Wrapped"), (adapted, "one of LoRA")):
        message = rf"model must be a models\.Classifier whose head is an equinox\.nn\.Linear, got {got}\."
        with pytest.raises(ValueError, match=message):
            strategy.start(model, 3, key=KEY)


class Faulty(Strategy):
    """What somebody may write."""

    how: str = eqx.field(static=True)

    def start(self, model, clients, *, key):
        return (model, 0), 0

    def client_update(self, server, state, client, *, key):
        losses = {"float": 0.0, "none": None, "two": jnp.zeros(2)}
        done = Update(jnp.zeros(()), state + (self.how == "state"), losses.get(self.how, jnp.zeros(())))
        return tuple(done) if self.how == "tuple" else done

    def server_update(self, server, uploads, cohort, *, key):
        return server[0], server[1] + 1

    def personal(self, server, state, client, *, key):
        return server[0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("tuple", r"Faulty\.client_update must be a function that returns an Update, got tuple\."),
        ("float", r"Faulty\.client_update must be a function whose loss is an array of one number, got a float\."),
        ("none", r"Faulty\.client_update must be a function whose loss .* of one number, got a NoneType\."),
        ("two", r"Faulty\.client_update must be a function whose loss .* of one number, got shape \(2,\)\."),
        ("state", r"the state it was given, got state = 1 instead of 0 \(what changes must be an array\)\."),
        ("server", r"the server it was given, got server\[1\] = 1 instead of 0 \(what changes must be an array\)\."),
    ],
)
def test_strategies_that_lose_what_they_return(clients, how, message):
    """A number that is no array would be compiled in, and stay what it was."""
    with pytest.raises(ValueError, match=message):
        run(clients, Faulty(how))


def test_a_model_may_know_more_classes_than_there_are(clients):
    """What nobody holds is masked, in a client's penalty and in the server's step."""
    model = models.Network.create((5, 5, 1), 6, dense=(6,), key=KEY)
    strategy = Flute(fleet.local())
    client = federated._strategy.one_client(clients, jnp.zeros((), jnp.int32))
    heads = jnp.broadcast_to(model.head.weight, (2, 6, 6))
    held = jnp.array([[True, True, False, False], [True, False, True, True]])
    server, state = strategy.start(model, 2, key=KEY)
    shapes = eqx.filter_eval_shape(lambda: strategy.client_update(server, state, client, key=KEY))
    assert shapes.upload.held.shape == (4,)
    upload = federated._flute.FluteUpload(federated.weighted(server.body, 2.0), server.heads, held)
    cohort = federated.Cohort(jnp.arange(2, dtype=jnp.int32), jnp.ones(2, bool), 2.0)
    moved = jax.jit(lambda: strategy.server_update(server, upload, cohort, key=KEY))().heads.head.weight
    masks = np.pad(held, ((0, 0), (0, 2)))
    expected = jax.jit(federated.neural_collapse_step)(heads, jnp.asarray(masks), 0.5)
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-6)
    assert abs(expected - heads).max() > 1e-3
