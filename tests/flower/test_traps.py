"""Traps of Flower: secure aggregation, messages outside of a run; and every example of the room's docstrings."""

import doctest
import importlib
import pkgutil

import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

import clairjax.flower
from clairjax.flower import ClairStrategy, LocalGrid, arrays


def test_the_workflow_of_secure_aggregation_is_refused():
    from flwr.server import LegacyContext
    from flwr.server.workflow.default_workflows import default_init_params_workflow

    grid = LocalGrid(nodes.make_app(), nodes.fleet([4] * 3))
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), strategy=ClairStrategy(nodes.config(4)))
    with pytest.raises(ValueError, match=r"must see each adapter.*SecAgg\+.*take the mod out"):
        default_init_params_workflow(grid, context)  # with which a run of SecAggPlusWorkflow begins


def test_nodes_with_the_mod_of_secure_aggregation_are_told(run):
    from flwr.client.mod import secaggplus_mod

    app = ClientApp(mods=[secaggplus_mod])
    app.train()(lambda message, context: message)
    (one,) = run([4] * 4, rounds=1, app=app, fraction_evaluate=0.0).rounds
    assert all("ClairStrategy must see each adapter" in why for why in one.failed.values()) and len(one.failed) == 4


def test_a_message_outside_of_a_run_needs_whose_it_is(monkeypatch):
    """`LocalGrid` says so; without it Flower refuses to make one."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    make = lambda: Message(RecordDict(), dst_node_id=7, message_type=MessageType.TRAIN)
    with pytest.raises(RuntimeError, match="TaskIdentity"):
        make()
    strategy, initial = ClairStrategy(nodes.config(4)), arrays(nodes.start(4))
    strategy.start(LocalGrid(nodes.make_app(), nodes.fleet([4] * 3)), initial, num_rounds=1, timeout=5)
    assert len(strategy.rounds[0].members) == 3


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(clairjax.flower.__path__)])
def test_examples_of_docstrings(name):
    found = doctest.testmod(importlib.import_module(f"clairjax.flower.{name}"))
    assert not found.failed
