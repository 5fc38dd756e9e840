"""The copying experiment: training, the backbone's file, aggregation and verdicts, reports of made results."""

import contextlib
import dataclasses
import functools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clairjax as cj
from clairjax._blend import CANDIDATES
from clairjax.data import Copying, masked_accuracy
from clairjax.experiments import EXPERIMENTS
from clairjax.experiments import _copying_backbone as backbones
from clairjax.experiments import _copying_experiment as copying
from clairjax.experiments._copying_aggregation import (
    PUBLISHED,
    as_published,
    blends,
    by_factors,
    chosen,
    members_median,
)
from clairjax.experiments._copying_clients import (
    Cell,
    Fleet,
    draw_tasks,
    draw_tests,
    draw_validation,
    judge,
    losses,
    train_fleet,
)
from clairjax.experiments._copying_training import (
    FineTuning,
    Pretraining,
    accuracy,
    fine_tune,
    loss,
    pretrain_steps,
    start,
)
from clairjax.models import LoRA, trainable
from clairjax.sweep import Results


NAMES = ("clair-table3", "clair-fig2", "clair-fig3", "clair-contaminations")
TINY = Pretraining(steps=3, batch=8)
SMALL = Cell("heterogeneous", "reversed", clients=4, sequences=100, test_sequences=20, pretraining_steps=3)


@pytest.fixture(scope="module")
def model():
    return TINY.initial()


@pytest.fixture(scope="module")
def tokens():
    return Copying(1.1, 16).generate(100, key=jax.random.key(3)).tokens


def test_pretraining_lowers_the_loss_and_is_deterministic(model):
    settings = dataclasses.replace(TINY, steps=60, batch=16)
    sequences = settings.task.generate(64, key=jax.random.key(9)).tokens
    runs = [
        pretrain_steps(settings.initial(), start(model, settings.rate), settings, jnp.asarray(0, jnp.int32), 60)
        for _ in range(2)
    ]
    assert eqx.tree_equal(runs[0][0], runs[1][0])
    assert float(loss(runs[0][0], sequences)) < float(loss(model, sequences)) - 0.3


def test_a_hundred_steps_at_once_or_in_parts_are_the_same(model):
    part = lambda carry, first, count: pretrain_steps(*carry[:2], TINY, jnp.asarray(first, jnp.int32), count)
    state = start(model, TINY.rate)
    whole = part((model, state), 0, 4)[0]
    parts = part(part((model, state), 0, 2), 2, 2)[0]
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_fine_tuning_moves_the_adapters_alone_and_lowers_the_loss(model, tokens, key):
    settings = FineTuning(sequences=100)
    adapted = settings.adapted(model, key=key)
    tuned = jax.jit(lambda k: fine_tune(adapted, tokens, settings, key=k))(key)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), adapted, tuned)
    assert jax.tree.leaves(moved) == jax.tree.leaves(trainable(adapted))
    assert float(loss(tuned, tokens)) < float(loss(adapted, tokens))
    assert len(tuned.projections) == 8 and all(isinstance(layer, LoRA) for layer in (*tuned.projections, tuned.output))
    assert tuned.projections[0].down.shape == (3, 64) and tuned.projections[0].scale == 16.0


def test_accuracy_in_batches_is_accuracy(model, key):
    sequences = Copying(1.1, 16).generate(100, key=key)
    whole = masked_accuracy(model(sequences.tokens), sequences)
    np.testing.assert_allclose(accuracy(model, sequences), whole, rtol=1e-6)


def test_a_fleet_is_its_clients_one_by_one(model, key):
    """The loop over clients, the merged matrices and the accuracies, against each client by hand."""
    tasks = draw_tasks(SMALL, key)
    assert tasks.lengths.min() >= 10 and tasks.lengths.max() <= 26
    fleet = jax.jit(lambda k: train_fleet(SMALL, model, tasks, key=k))(key)
    assert fleet.attention.shape == (8, 4, 64, 64) and fleet.attention.dtype == jnp.float32
    frozen = np.stack([layer.weight for layer in model.projections])[:, None]
    np.testing.assert_allclose(fleet.attention, frozen + 16 * fleet.up @ fleet.down, rtol=1e-5, atol=1e-6)
    adapter_key, clients_key = jax.random.split(key)
    adapted = SMALL.tuning.adapted(model, key=adapter_key)
    tune = jax.jit(lambda tokens, k: fine_tune(adapted, tokens, SMALL.tuning, key=k))
    keys = jax.random.split(clients_key, 4)
    for k, kind in ((1, "fuzzy"), (3, "reversed")):
        task = Copying(tasks.exponents[k], tasks.lengths[k], kind=kind)
        own = eqx.filter_jit(task.generate)(100, key=jax.random.fold_in(keys[k], 0)).tokens
        tuned = tune(own, jax.random.fold_in(keys[k], 1))
        matrices = np.stack([layer.base.weight + layer.delta() for layer in tuned.projections])
        np.testing.assert_allclose(fleet.attention[:, k], matrices, rtol=1e-3, atol=2e-4)
    tests = draw_tests(SMALL, tasks, key=key)
    found = judge(model, fleet, fleet.attention[None], tests)
    assert found.shape == (1, 3) and bool(((found >= 0) & (found <= 1)).all())


def test_judge_uses_the_backbone_where_nothing_was_learned(model, key):
    tasks = draw_tasks(SMALL, key)
    tests = draw_tests(SMALL, tasks, key=key)
    base = jnp.stack([layer.weight for layer in model.projections])
    outputs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), model.output)
    nothing = jnp.zeros((8, 4, 64, 3))
    fleet = Fleet(jnp.broadcast_to(base[:, None], (8, 4, 64, 64)), nothing, nothing.mT, outputs)
    found = judge(model, fleet, fleet.attention[None], tests)[0]
    for k in range(3):
        one = jax.tree.map(lambda leaf, k=k: leaf[k], tests)
        np.testing.assert_allclose(found[k], accuracy(model, one), rtol=1e-5)


def test_the_homogeneous_regime_has_one_task_and_one_test(key):
    cell = dataclasses.replace(SMALL, regime="homogeneous")
    tasks = draw_tasks(cell, key)
    assert set(np.asarray(tasks.lengths)) == {16} and np.allclose(tasks.exponents, 1.1)
    tests = draw_tests(cell, tasks, key=key)
    np.testing.assert_array_equal(tests.tokens[0], tests.tokens[2])


def made_factors(rng, *, layers=3, clients=10, out=12, in_=14, rank=3):
    """Adapters that start from one A and move it a little; the last client learns something else."""
    moved = np.where(np.arange(clients) < clients - 1, 0.02, 0.5)[:, None, None]
    down = rng.normal(size=(layers, 1, rank, in_)) + moved * rng.normal(size=(layers, clients, rank, in_))
    up = rng.normal(size=(layers, 1, out, rank)) + 0.3 * rng.normal(size=(layers, clients, out, rank))
    up[:, -1] = rng.normal(size=(layers, out, rank))
    return jnp.asarray(up), jnp.asarray(down)


@jax.jit
def aggregated(up, down):
    """One program, as in a sweep."""
    return by_factors(up, down, 2.0)


def test_adapters_are_refined_by_the_clients_that_belong_by_all_layers(rng):
    up, down = made_factors(rng)
    refined, verdicts, pooled = aggregated(up, down)
    assert pooled.words == ["member"] * 9 + ["unrelated"]
    updates = np.asarray(2 * up @ down)
    assert set(refined) == {"auto", "auto_shrink", "dual", "dual_shrink"}
    for name in ("auto", "dual"):
        np.testing.assert_array_equal(verdicts[name].members, np.arange(10) < 9)
        np.testing.assert_allclose(refined[name][:, 9], updates[:, 9], atol=1e-12)
        # (9) keeps the members' mean.
        np.testing.assert_allclose(refined[name][:, :9].mean(1), updates[:, :9].mean(1), atol=1e-12)
    assert set(np.asarray(verdicts["auto"].ranks)) == {3}
    # In the one space of rows nearly everything is kept; of the columns only what more than noise explains.
    kept = {name: np.square(refined[name][:, :9] - updates[:, :9]).sum() for name in ("auto", "dual")}
    assert kept["auto"] < 0.01 * kept["dual"]


def test_one_layer_without_differences_changes_no_verdict(rng):
    up, down = made_factors(rng)
    up, down = up.at[0, 9].set(up[0, 0]), down.at[0, 9].set(down[0, 0])
    _, verdicts, _ = aggregated(up, down)
    assert bool(verdicts["auto"].layers[0, 9])
    np.testing.assert_array_equal(verdicts["auto"].members, np.arange(10) < 9)


def test_the_median_is_the_matrix_nearest_to_the_members(rng):
    """By gradient: the sum of the members' unit vectors towards it is zero. The stranger's numbers do not enter."""
    updates = rng.normal(size=(3, 10, 12, 14))
    updates[:, 4] *= 40  # clipped layer by layer
    members = np.arange(10) < 9
    found = np.asarray(members_median(jnp.asarray(updates), jnp.asarray(members)))
    sizes = np.linalg.norm(updates, axis=(2, 3), keepdims=True)
    clipped = updates * np.minimum(1, 1.5 * np.median(sizes[:, :9], axis=1, keepdims=True) / sizes)
    apart = (found[:, None] - clipped)[:, :9].swapaxes(0, 1).reshape(9, -1)
    towards = apart / np.linalg.norm(apart, axis=1, keepdims=True)
    assert np.linalg.norm(towards.sum(0)) < 1e-6
    updates[:, 9] = 1e6
    np.testing.assert_array_equal(members_median(jnp.asarray(updates), jnp.asarray(members)), found)


def test_members_get_the_blend_and_others_keep_their_own(rng):
    updates, frozen = rng.normal(size=(3, 10, 12, 14)), rng.normal(size=(3, 1, 12, 14))
    own = frozen + updates
    members = np.arange(10) < 9
    found = np.asarray(blends(jnp.asarray(own), jnp.asarray(updates), jnp.asarray(members)))
    median = members_median(jnp.asarray(updates), jnp.asarray(members))
    for place, t in enumerate((0, 0.25, 0.5, 0.75, 1)):
        blend = frozen[:, 0] + t * updates[:, 2] + (1 - t) * median
        np.testing.assert_allclose(found[place, :, 2], blend, atol=1e-12)
        np.testing.assert_array_equal(found[place, :, 9], own[:, 9])
    alone = blends(jnp.asarray(own), jnp.asarray(updates), jnp.asarray(np.arange(10) < 1))
    np.testing.assert_array_equal(alone, np.broadcast_to(own, (5, *own.shape)))


def test_the_t_is_the_one_that_adapters_choose(rng):
    """By the members' losses alone."""
    for gain in (0.5, 0.0, -0.5):
        table = 2 + gain * np.linspace(-1, 0, 5)[:, None] + 0.1 * rng.normal(size=(5, 10))
        told = {f"{k}": dict(zip(CANDIDATES, table[:, k], strict=True)) for k in range(9)}
        table[:, 9] = -1e6 * np.arange(5)
        place = chosen(jnp.asarray(table), jnp.arange(10) < 9)
        assert CANDIDATES[int(place)] == cj.adapters.choose(told)


def test_validation_is_of_each_clients_own_task_and_apart_from_the_test(model, key):
    tasks = draw_tasks(SMALL, key)
    tokens = draw_validation(SMALL, tasks, key=key)
    assert tokens.shape == (4, 200, 64)
    own = Copying(tasks.exponents[3], tasks.lengths[3], kind="reversed")
    drawn = eqx.filter_jit(own.generate)(200, key=jax.random.split(key, 4)[3]).tokens
    np.testing.assert_array_equal(tokens[3], drawn)
    base = jnp.stack([layer.weight for layer in model.projections])
    outputs = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), model.output)
    nothing = jnp.zeros((8, 4, 64, 3))
    fleet = Fleet(jnp.broadcast_to(base[:, None], (8, 4, 64, 64)), nothing, nothing.mT, outputs)
    found = losses(model, fleet, fleet.attention[None], tokens[:, :20])
    expected = [float(loss(model, tokens[k, :20])) for k in range(4)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_the_published_procedure_uses_the_printed_numbers(rng):
    for regime, printed in {"homogeneous": (0.5, 0.4, 0.5), "heterogeneous": (0.5, 0.2, 0.01)}.items():
        settings = PUBLISHED[regime]
        assert (settings.penalty.low_rank, settings.penalty.sparse, settings.threshold) == printed
    up, down = made_factors(rng)
    refined, found = as_published(up @ down, PUBLISHED["homogeneous"])
    assert refined.shape == (3, 10, 12, 14) and found.layers.shape == (3, 10)
    np.testing.assert_allclose(refined[:, ~found.members], (up @ down)[:, ~found.members])


def test_the_backbone_is_trained_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.delenv(backbones.CACHE, raising=False)
    first = backbones.backbone(TINY, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == backbones.file_name(TINY) != backbones.file_name(dataclasses.replace(TINY, steps=4))
    monkeypatch.setattr(backbones, "pretrain", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setenv(backbones.CACHE, str(tmp_path))  # stronger than the folder given
    second = backbones.backbone(TINY, tmp_path / "elsewhere")
    assert eqx.tree_equal(first, second) and jax.tree.structure(first) == jax.tree.structure(second)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("locks", [True, False])
def test_processes_that_need_a_backbone_at_once_have_one(tmp_path, monkeypatch, locks):
    """One trains. Where folders cannot be locked all do, each to its own digits, and have the file of the first."""
    template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(TINY.initial))
    trained, ready = [], threading.Barrier(4)

    def pretrain(settings, progress):
        trained.append(1)
        time.sleep(0.1)
        mine = threading.get_ident() % 1009
        return jax.tree.map(lambda leaf: leaf + np.asarray(mine, leaf.dtype), template), {
            "settings": dataclasses.asdict(settings)
        }

    def need(_):
        ready.wait()
        return backbones.backbone(TINY, tmp_path / "new")

    monkeypatch.delenv(backbones.CACHE, raising=False)
    monkeypatch.setattr(backbones, "pretrain", pretrain)
    if not locks:
        monkeypatch.setattr(backbones, "locked", lambda _: contextlib.nullcontext())
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(need, range(4))
    assert len(trained) == (1 if locks else 4)
    assert all(eqx.tree_equal(first, other) for other in [*others, backbones.backbone(TINY, tmp_path / "new")])
    assert [path.name for path in (tmp_path / "new").iterdir()] == [backbones.file_name(TINY)]


@pytest.mark.parametrize("damage", ["cut", "text", "other settings"])
def test_a_damaged_backbone_is_trained_again(damage, tmp_path, monkeypatch):
    monkeypatch.delenv(backbones.CACHE, raising=False)
    first = backbones.backbone(TINY, tmp_path)
    (path,) = tmp_path.iterdir()
    if damage == "other settings":
        path.rename(tmp_path / backbones.file_name(dataclasses.replace(TINY, rate=0.01)))
        path = tmp_path / backbones.file_name(dataclasses.replace(TINY, rate=0.01))
        with pytest.warns(UserWarning, match="it holds another model"):
            assert backbones._load(path, dataclasses.replace(TINY, rate=0.01)) is None
        return
    path.write_bytes(path.read_bytes()[:-200] if damage == "cut" else b"not a model")
    with pytest.warns(UserWarning, match=f"^{re.escape(str(path))} cannot be used and is written anew: "):
        again = backbones.backbone(TINY, tmp_path)
    assert eqx.tree_equal(first, again)


def made(name, replicates=4):
    """Results of random numbers with an experiment's names and shapes."""
    draws = np.random.default_rng(0)
    experiment = EXPERIMENTS[name]
    cells = experiment.presets["smoke"].cells
    arrays = {}
    for cell in cells:
        arrays[cell] = {method: draws.uniform(0.7, 0.8, (replicates, cell.benign)) for method in copying.METHODS}
        arrays[cell]["relative"] = np.linspace(1.4, 0.1, cell.clients) + np.arange(replicates)[:, None] / 100
        arrays[cell]["t"] = np.array([0.0, 0.25, 0.25, 1.0])
        arrays[cell]["kinds"] = np.tile(np.where(np.arange(cell.clients) < cell.benign, 0, 3), (replicates, 1))
        for who in copying.CLAIRS:
            benign = np.arange(cell.clients) < cell.benign
            arrays[cell] |= {
                f"{who}_members": np.tile(benign, (replicates, 1)),
                f"{who}_layers": np.tile(benign, (replicates, 8, 1)),
                f"{who}_ranks": np.full((replicates, 8), 3),
                f"{who}_status": np.zeros((replicates, 8), np.int32),
            }
    zero = dict.fromkeys(cells, 0.0)
    return Results(arrays, {cell: np.zeros(replicates, bool) for cell in cells}, zero, zero, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_report_and_plot(name, tmp_path):
    tables = EXPERIMENTS[name].write(made(name), tmp_path)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert tables[2].rows[0][2:4] == ("4 of 4", "8.00 ±0.00")
    assert tables[2].rows[0][-4:] == ("member 36", "0.24", "unrelated 4", "0.13")


def test_the_table_counts_wrong_verdicts_and_pairs_differences():
    results = made("clair-table3")
    cell = results.cells[0]
    results.arrays[cell]["auto_members"][1, 3] = False
    results.arrays[cell]["auto"] = results.arrays[cell]["local"] + 0.01
    tables = EXPERIMENTS["clair-table3"].report(results)
    assert tables[2].rows[0][5] == "3 of 4"
    assert tables[1].rows[0][5] == "1.00 ±0.00"
    assert tables[1].rows[0][-2] == "0 × 1, 0.25 × 2, 1 × 1"
    assert tables[0].rows[0][3] == "78.27" and tables[0].rows[1][3] == "77.77"


def test_presets_share_one_backbone():
    cells = [cell for name in NAMES for size in ("laptop", "paper") for cell in every_cell(name, size)]
    assert {cell.pretraining for cell in cells} == {Pretraining()}
    assert {cell.tuning for cell in cells} == {FineTuning()}
    assert EXPERIMENTS["clair-table3"].presets["paper"].replicates == 100


@functools.cache
def every_cell(name, size):
    return EXPERIMENTS[name].presets[size].cells
