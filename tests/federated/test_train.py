"""The round loop: padding, resuming, cohorts, devices, and what a run is given."""

import equinox as eqx
import fleet
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import EVENTS, nothing_compiles

from clairjax import data, federated, models, privacy
from clairjax._status import Status
from clairjax.federated import FedAvg, FedPer, Flute, Strategy, Update


KEY = jax.random.key(7)
LONG = {"rounds": 6, "key": KEY, "sampler": 3, "evaluate_every": 2}


def run(clients, strategy=None, **more):
    return federated.train(fleet.network(), strategy or FedPer(fleet.local()), clients, **LONG | more)


def same(first, second):
    """Bit for bit: curves, server and states."""
    for one, other in zip(
        fleet.leaves(
            (first.rounds, first.losses, first.client_accuracies, first.server, first.states, first.measures)
        ),
        fleet.leaves(
            (second.rounds, second.losses, second.client_accuracies, second.server, second.states, second.measures)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def wider(split, more, filling):
    """The same clients with more padding, of another row of the pool."""
    rows = np.asarray(split.rows)
    padded = np.pad(rows, ((0, 0), (0, more)))
    padded[np.arange(padded.shape[1])[None] >= np.asarray(split.counts)[:, None]] = filling
    return eqx.tree_at(lambda s: s.rows, split, jnp.asarray(padded))


PRIVATE = federated.Privacy(0.1, noise_multiplier=0.5)
STRATEGIES = {
    "FedRep": lambda local: federated.FedRep(local, head_epochs=2),
    "FedAvgFT": lambda local: federated.FedAvgFT(local, tune=1),
    "FedRoD": federated.FedRoD,
    "FedCP": federated.FedCP,
    "Flute": lambda local: Flute(local, head_epochs=1),
    "StandAlone": federated.StandAlone,
    "Clair": lambda local: federated.Clair(local, layers=lambda m: m.dense, own=lambda m: m.head),
    "DPFedAvg": lambda local: federated.DPFedAvg(PRIVATE, local, tune=1),
    "PMTL": lambda local: federated.PMTL(PRIVATE, local, epochs=1, tune=1),
    "PPSGD": lambda local: federated.PPSGD(PRIVATE, local, own=local, tune=1),
    "Centaur": lambda local: federated.Centaur(PRIVATE, local, head_epochs=1, tune=1),
}
NAMES = [pytest.param(name, marks=() if name == "FedRep" else pytest.mark.slow) for name in STRATEGIES]


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_bit(rng, name, batch):
    """Neither its length nor what is in it: with clients of one sample or class, and of no test samples."""
    images, labels = fleet.images(rng, 60)
    places = rng.permutation(60)
    own = [places[:1], places[1:3], places[3:10], places[10:23], np.flatnonzero(labels == 2)[:5]]
    tests = [places[23:25], places[:0], places[25:30], places[30:31], places[:0]]
    train, test, none = (data.Split.of(rows) for rows in (own, tests, [places[:0]] * 5))
    pool = jnp.asarray(images)[..., None], jnp.asarray(labels, jnp.int32)
    clients = data.Federation(*pool, train, test, none, fleet.CLASSES)
    padded = data.Federation(*pool, wider(train, 7, 59), wider(test, 3, 58), wider(none, 2, 57), fleet.CLASSES)
    strategy = STRATEGIES[name](fleet.local(batch))
    one, other = (run(each, strategy, rounds=2, sampler=None) for each in (clients, padded))
    same(one, other)
    assert np.isnan(one.client_accuracies).all(0).tolist() == [False, True, False, False, True]


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_that_is_killed_goes_on_bit_for_bit(clients, tmp_path, monkeypatch, at):
    """Before the first checkpoint is there, behind it, and while it is being replaced."""
    strategy = Flute(fleet.local())
    more = {"measure": lambda server, states: {"heads": server.heads.head.weight, "four": 4.0}}
    whole = run(clients, strategy, **more)
    assert whole.measures["four"].tolist() == [4.0] * 4
    np.testing.assert_array_equal(whole.measures["heads"][-1], whole.server.heads.head.weight)
    writes, replace = [], federated._checkpoint.replace_file

    def killing(path, write):
        writes.append(path)
        if len(writes) == at:
            raise Killed
        replace(path, write)

    with monkeypatch.context() as patched:
        patched.setattr(federated._checkpoint, "replace_file", killing)
        with pytest.raises(Killed):
            run(clients, strategy, out=tmp_path, **more)
    resumed = run(clients, strategy, out=tmp_path, **more)
    same(whole, resumed)
    same(whole, run(clients, strategy, out=tmp_path, **more))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_more_rounds_go_on_from_fewer(clients, tmp_path):
    run(clients, out=tmp_path, rounds=4)
    same(run(clients), run(clients, out=tmp_path))
    with pytest.raises(ValueError, match=r"rounds must be at least 6, the rounds that out has done, got 4\."):
        run(clients, out=tmp_path, rounds=4)


def other_local(rate):
    return federated.Local(federated.sgd(rate), batch=4)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"key": jax.random.key(8)}, "key"),
        ({"sampler": 2}, "sampler"),
        ({"evaluate_every": 3}, "evaluate_every"),
        ({"strategy": FedPer(other_local(0.02))}, "strategy"),  # a number that only a closure of optax holds
        ({"strategy": FedAvg(other_local(0.01))}, "strategy"),
    ],
)
def test_a_folder_of_another_run_is_refused(clients, tmp_path, changed, named):
    first = {"strategy": FedPer(other_local(0.01)), "rounds": 2, "out": tmp_path}
    run(clients, **first)
    with pytest.raises(ValueError, match=rf"holds another run: {named} must be .*, got "):
        run(clients, **first | changed)


@pytest.mark.parametrize("package", ["clairjax", "jax"])
def test_a_folder_of_another_version_is_refused(clients, tmp_path, monkeypatch, package):
    """A run that goes on by other code would be of neither."""
    run(clients, rounds=2, out=tmp_path)
    version = federated._checkpoint.version
    monkeypatch.setattr(federated._checkpoint, "version", lambda name: "0" if name == package else version(name))
    with pytest.raises(ValueError, match=rf"holds another run: {package} must be .*, got 0\."):
        run(clients, rounds=2, out=tmp_path)


def test_a_foreign_checkpoint_is_named(clients, tmp_path):
    (tmp_path / "checkpoint.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"out: .*checkpoint.npz must be a checkpoint of clairjax.federated"):
        run(clients, out=tmp_path)


def test_leaves_of_every_kind_come_back_from_a_checkpoint(tmp_path):
    """Bit for bit, those that NumPy's files do not know among them: random keys and bfloat16."""
    keys = jax.random.split(jax.random.key(0), 3), jax.random.key(1, impl="rbg")
    tree = {"keys": keys, "half": jnp.arange(3, dtype=jnp.bfloat16), "flags": jnp.array([True]), "none": None}
    kept = federated._checkpoint.Checkpoint(tmp_path, {"key": keys[0]})
    kept.write(2, tree)
    rounds, found = kept.read()
    found = federated._checkpoint.restored(tree, found)
    assert rounds == 2 and jax.tree.structure(found) == jax.tree.structure(tree)
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert new.dtype == old.dtype and (new == old).all()


def test_only_a_round_s_clients_move(clients):
    """Who is not sampled keeps its state, bit for bit; who is, does not."""
    before = run(clients, rounds=1)
    start = fleet.leaves(fleet.network().head)
    moved = [
        any((leaf[k] != own).any() for leaf, own in zip(fleet.leaves(before.states), start, strict=True))
        for k in range(len(clients))
    ]
    assert sum(moved) == 3


def test_a_personal_leaf_leaves_no_trace_in_what_the_server_holds(clients):
    """The server of FedPer has the body alone: there is no head in it to leak."""
    found = run(clients)
    sizes = sorted(leaf.shape for leaf in fleet.leaves(found.server))
    assert sizes == sorted(leaf.shape for leaf in fleet.leaves(fleet.network().dense))


def test_accuracy_is_that_of_the_personal_models(clients):
    """Counted by hand from `personal`."""
    found = run(clients)
    right = []
    for k in range(len(clients)):
        rows = np.asarray(clients.test.rows[k][: clients.test.counts[k]])
        pixels = data.scaled(clients.images[rows], jnp.float32)
        said = np.asarray(found.personal(k)(pixels)).argmax(1)
        right.append((said == np.asarray(clients.labels)[rows]).sum())
    np.testing.assert_allclose(found.accuracies[-1], sum(right) / np.asarray(clients.test.counts).sum())
    np.testing.assert_allclose(found.client_accuracies[-1], np.array(right) / np.asarray(clients.test.counts))
    assert found.accuracies[-1] > found.accuracies[0]
    assert found.status == Status.converged and found.rounds.tolist() == [0, 2, 4, 6]


def test_tuning_goes_on_from_what_a_run_has(clients):
    """At no epochs it is the run's last evaluation, bit for bit; with some it is that of other heads."""
    found = run(clients)
    np.testing.assert_array_equal(federated.evaluate(found), found.client_accuracies[-1])
    tuned = federated.evaluate(found, FedPer(fleet.local(), tune=20))
    assert (tuned != found.client_accuracies[-1]).any()


@pytest.mark.slow
def test_clients_at_once_are_clients_in_turn(clients, monkeypatch):
    """What accelerators do, on this machine: three lanes for six clients, of which some have more steps."""
    strategy = Flute(fleet.local(), head_epochs=1)
    one = run(clients, strategy, sampler=5)
    monkeypatch.setattr(federated._rounds, "lanes_of_backend", lambda: 3)
    jax.clear_caches()
    three = run(clients, strategy, sampler=5)
    jax.clear_caches()
    np.testing.assert_allclose(one.losses, three.losses, rtol=1e-5)
    for first, second in zip(fleet.leaves(one.server), fleet.leaves(three.server), strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


def test_rounds_nobody_is_in_change_nothing(clients):
    """Poisson with a tiny rate: the average of no one is what there was."""
    found = run(clients, FedAvg(fleet.local()), sampler=privacy.Poisson(1e-6))
    for leaf, start in zip(fleet.leaves(found.server), fleet.leaves(fleet.network()), strict=True):
        np.testing.assert_array_equal(leaf, start)
    assert np.isnan(found.losses).all() and found.status == Status.converged


@pytest.mark.parametrize("private", [False, True])
def test_a_run_that_diverges_says_so(clients, private):
    """Also where no weight shows it: a private server takes an update that is not finite for none."""
    wild = federated.Local(federated.sgd(1e20), batch=4)
    silent = federated.DPFedAvg(federated.Privacy(0.1, noise_multiplier=0.0), wild, tune=0)
    found = run(clients, silent if private else FedAvg(wild))
    assert found.status == Status.diverged and np.isinf(found.losses).any()
    assert not private or all(np.isfinite(leaf).all() for leaf in fleet.leaves(found.server))


def test_one_compilation_a_run(clients, monkeypatch):
    """Segments of any length are one program; another key is the same one."""
    traced = []
    update = FedAvg.client_update

    class Counting(FedAvg):
        def client_update(self, server, state, client, *, key):
            traced.append(1)
            return update(self, server, state, client, key=key)

    run(clients, Counting(fleet.local()), rounds=5)
    once = len(traced)
    run(clients, Counting(fleet.local()), rounds=3, key=jax.random.key(9))
    assert len(traced) - once == 1  # the check of its trees, which runs nothing


class Returns(FedAvg):
    """What a faulty strategy gives back."""

    how: str = eqx.field(static=True, default="")

    def client_update(self, server, state, client, *, key):
        done = super().client_update(server, state, client, key=key)
        return done._replace(state=jnp.zeros(2)) if self.how == "state" else done

    def server_update(self, server, uploads, cohort, *, key):
        server = super().server_update(server, uploads, cohort, key=key)
        if self.how == "dtype":
            return eqx.tree_at(lambda m: m.head.bias, server, server.head.bias.astype(jnp.float16))
        if self.how == "shape":
            return eqx.tree_at(lambda m: m.head.weight, server, server.head.weight[:2])
        return (server,) if self.how == "tree" else server


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "state",
            r"Returns.client_update must be a function .* the state it was given, got it with another leaf state\.",
        ),
        ("dtype", r"server\.head\.bias of \(4,\) float16 instead of \(4,\) float32\."),
        ("shape", r"server\.head\.weight of \(2, 6\) float32 instead of \(4, 6\) float32\."),
        (
            "tree",
            r"Returns.server_update must be a function .* the server it was given, got it without server\.",
        ),
    ],
)
def test_another_tree_than_was_given_is_refused_by_leaf(clients, how, message):
    with pytest.raises(ValueError, match=message):
        run(clients, Returns(fleet.local(), how=how))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda m: m.blocks, r"head must be a function that picks at least one array of the model, got none\."),
        (lambda m: m, r"head must be a function that leaves at least one array of the model, got all of them\."),
        (lambda m: m.tail, r"head must be a function that picks parts of the model, got AttributeError: "),
    ],
)
def test_a_choice_of_nothing_is_refused(clients, head, message):
    with pytest.raises(ValueError, match=message):
        run(clients, FedPer(fleet.local(), head=head))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampler": 7}, r"sampler\.size must be at most the number of clients, 6, got 7\."),
        ({"sampler": 0}, r"size must be an integer of at least 1, got 0\."),
        ({"rounds": 0}, r"rounds must be an integer of at least 1, got 0\."),
        ({"evaluate_every": 0}, r"evaluate_every must be an integer of at least 1, got 0\."),
    ],
)
def test_bad_arguments_are_refused_by_name(clients, changed, message):
    with pytest.raises(ValueError, match=message):
        run(clients, **changed)


def test_models_that_do_not_fit_are_refused(clients):
    two = models.Network.create((5, 5, 1), 2, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"model must be one that gives logits of shape \(batch, 4 or more\), got"):
        federated.train(two, FedAvg(), clients, rounds=1, key=KEY)
    other = models.Network.create((8, 8, 1), 4, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"model must be one for images of shape \(5, 5, 1\), got one that refuses"):
        federated.train(other, FedAvg(), clients, rounds=1, key=KEY)


def test_several_seeds_are_one_program():
    """Other clients, another model, key and noise, of the same shapes: all are arguments of what is compiled."""

    def seed(number):
        found = federated.train(
            jax.tree.map(lambda leaf: leaf + number, fleet.network()),
            federated.Centaur(federated.Privacy(0.1 * (1 + number), noise_multiplier=1.0 + number), fleet.local()),
            fleet.federation(np.random.default_rng(number)),
            rounds=4,
            key=jax.random.key(number),
            evaluate_every=2,
        )
        return federated.evaluate(found), found.personal(number)

    seed(0)
    before = len(EVENTS)
    seed(1)
    assert not [event for event in EVENTS[before:] if "backend_compile" in event]


def test_clients_without_samples_are_refused(clients):
    hollow = eqx.tree_at(lambda c: c.train.counts, clients, clients.train.counts.at[jnp.array([1, 4])].set(0))
    message = r"clients must be left with at least one training sample each, got none for client\(s\) 1, 4\."
    with pytest.raises(ValueError, match=message):
        run(hollow)


def test_the_history_names_a_client_out_of_range(clients):
    found = run(clients, rounds=2)
    for client in (6, -1):
        with pytest.raises(ValueError, match=rf"client must be an integer in 0 … 5, got {client}\."):
            found.personal(client)
    found.personal(0)
    with nothing_compiles():  # one program for all clients
        found.personal(5)
    with pytest.raises(ValueError, match=r"best must be asked for where clients have validation samples, got none"):
        _ = found.best


def test_any_module_with_functions_in_it_can_be_trained(clients):
    """`eqx.nn.MLP` holds its activation as a leaf that is no array."""

    class Wrapped(eqx.Module):
        mlp: eqx.nn.MLP

        def __call__(self, images, *, key=None):
            return jax.vmap(self.mlp)(images.reshape(len(images), -1))

    model = Wrapped(eqx.nn.MLP(25, 4, 6, 1, dtype=jnp.float32, key=jax.random.key(0)))
    strategy = FedPer(fleet.local(), head=lambda m: m.mlp.layers[-1])
    found = federated.train(model, strategy, clients, rounds=3, key=KEY)
    assert found.accuracies[-1] > found.accuracies[0]


class Mine(Strategy):
    """Own leaf, own server, uploads that are stacked: what the four methods promise is what they get."""

    def start(self, model, clients, *, key):
        return (model, jnp.zeros(clients, jnp.int32)), jnp.zeros((), jnp.int32)

    def client_update(self, server, state, client, *, key):
        return Update(client.number, state + 1, jnp.zeros((), jnp.float32))

    def server_update(self, server, uploads, cohort, *, key):
        return server[0], server[1].at[jnp.where(cohort.present, uploads, len(server[1]))].add(1, mode="drop")

    def personal(self, server, state, client, *, key):
        return server[0]


@pytest.mark.parametrize("sampler", [None, 4, privacy.Poisson(0.4)])
def test_uploads_arrive_from_those_who_were_there(clients, sampler):
    """How often the server heard of a client is how often the client was asked."""
    found = run(clients, Mine(), sampler=sampler, rounds=5)
    np.testing.assert_array_equal(found.server[1], found.states)
    assert found.server[1].sum() == {None: 30, 4: 20}.get(sampler, found.server[1].sum())


def recursive(depth):
    def down(n):
        return depth if n in {0, 1} else down(n - 1)

    return down


def test_settings_are_told_apart_by_what_their_functions_hold():
    """Rates are held by closures of optax; a function may hold itself."""
    print_of = federated._checkpoint.fingerprint
    assert print_of(federated.sgd(0.01)) != print_of(federated.sgd(0.02))
    assert print_of(recursive(1)) == print_of(recursive(1)) != print_of(recursive(2))
    assert print_of(FedPer(head=lambda m: m.head)) != print_of(FedPer(head=lambda m: m.dense))
    assert print_of({"a", "b", "c"}) == print_of({"c", "b", "a"})
    assert print_of(jax.random.key(0, impl="rbg")) != print_of(jax.random.key(0, impl="unsafe_rbg"))


class Shift:
    """A setting that is an object: its repr says nothing of what it holds."""

    def __init__(self, by):
        self.by, self.itself = by, self

    def __call__(self, images, *, key):
        return images + self.by


def edited(by):
    """One strategy before and after somebody edits a method of it."""

    class Edited(FedAvg):
        def server_update(self, server, uploads, cohort, *, key):
            return server

    class After(FedAvg):
        def server_update(self, server, uploads, cohort, *, key):
            return super().server_update(server, uploads, cohort, key=key)

    After.__qualname__ = Edited.__qualname__
    return (After if by else Edited)()


@pytest.mark.parametrize(
    "made",
    [
        Shift,
        lambda by: Shift(by).__call__,
        lambda by: jax.jit(Shift(by)),
        lambda by: jax.jit(lambda x: x + by),
        edited,
    ],
)
def test_objects_and_classes_of_one_s_own_are_told_apart_by_what_they_hold_and_do(made):
    print_of = federated._checkpoint.fingerprint
    assert print_of(made(0)) == print_of(made(0)) != print_of(made(1))
