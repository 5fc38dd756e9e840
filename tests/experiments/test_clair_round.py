"""One round of federated.Clair on the copying fleet is Table 3's clair, by rows and by columns."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.experiments import EXPERIMENTS
from clairjax.experiments._copying_aggregation import aggregate
from clairjax.experiments._copying_clients import draw_tasks, train_fleet
from clairjax.federated import Clair, Client, Cohort


@pytest.fixture(scope="module")
def fleet():
    """Ten clients of the smoke preset, the backbone, and the model that they start from."""
    cell = dataclasses.replace(EXPERIMENTS["clair-table3"].choose("smoke")[0], sequences=400)
    model = cell.pretraining.initial()
    task_key, train_key = jax.random.split(jax.random.key(7))
    found = jax.jit(lambda key: train_fleet(cell, model, draw_tasks(cell, task_key), key=key))(train_key)
    return cell, model, cell.tuning.adapted(model, key=jax.random.split(train_key)[0]), found


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "name"), [("rows", "auto"), ("columns", "dual")])
def test_a_round_on_the_copying_fleet_is_that_of_table_3(fleet, shared, name):
    """The matrices of all ten clients, and who belongs. What a client sends is as `client_update` forms it."""
    cell, model, adapted, found = fleet
    frozen = jnp.stack([layer.weight for layer in model.projections])
    methods, verdicts, pooled = jax.jit(lambda found: aggregate(cell, found, frozen))(found)
    strategy = Clair(layers=lambda m: m.projections, own=lambda m: m.output, shared=shared)
    server, own = strategy.start(adapted, cell.clients, key=jax.random.key(0))
    uploads = [(up, cell.scale * down) for up, down in zip(found.up, found.down, strict=True)]
    numbers = jnp.arange(cell.clients, dtype=jnp.int32)
    cohort = Cohort(numbers, jnp.ones(cell.clients, bool), float(cell.clients))
    after = jax.jit(lambda given: strategy.server_update(server, given, cohort, key=jax.random.key(1)))(uploads)
    row = jnp.zeros(1, jnp.int32)
    for k in range(cell.clients):
        used = strategy.personal(after, own, Client(numbers[k], row, row[0], row, row, 2), key=jax.random.key(0))
        mine = np.stack([layer.base.weight for layer in used.projections])
        np.testing.assert_allclose(mine, methods[name][:, k], rtol=0, atol=1e-5)
        assert all((layer.up == 0).all() for layer in used.projections)
    assert abs(methods[name] - methods["local"]).max() > 1e-3
    np.testing.assert_array_equal(after.verdicts.latest, pooled.kind)
    np.testing.assert_array_equal(np.asarray(after.verdicts.latest) == 0, verdicts[name].members)
    assert eqx.tree_equal(used.output, eqx.combine(own, adapted).output)
