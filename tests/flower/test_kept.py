"""What outlives a ServerApp: rounds and adapters in one file. And nodes that have other numbers afterwards."""

import numpy as np
import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import ConfigRecord
from safetensors.numpy import save_file

from clairjax.flower import ClairStrategy, LocalGrid, tensors


def started_again(path, first=1000, **options):
    """Another process' strategy and grid, whose nodes are numbered from `first`."""
    strategy = ClairStrategy(nodes.config(4), **options)
    everyone = strategy.load(path)
    return strategy, everyone, LocalGrid(nodes.make_app(), nodes.fleet(RANKS, first=first))


RANKS = [2, 4, 8, 4, 2]


def sent(strategy, everyone, grid):
    messages = strategy.configure_train(1, everyone, ConfigRecord(), grid)
    return {each.metadata.dst_node_id: tensors(each.content["arrays"]) for each in messages}


def test_a_strategy_goes_on_from_its_file(run, tmp_path):
    bad = {3: "contaminated", 1: "error"}
    before = run(RANKS, bad, blend=0.5, silent=lambda node, number: (node, number) == (1004, 2))
    before.save(tmp_path / "clair.safetensors")
    after, everyone, grid = started_again(tmp_path / "clair.safetensors", blend=0.5)
    assert after.rounds == before.rounds
    np.testing.assert_equal(tensors(everyone), tensors(before.result.arrays))
    np.testing.assert_equal(sent(after, everyone, grid), sent(before, everyone, grid))
    after.start(grid, everyone, num_rounds=1, timeout=5)
    assert len(after.rounds) == 3 and after.rounds[:2] == before.rounds
    assert [path.name for path in tmp_path.iterdir()] == ["clair.safetensors"]


def test_nodes_of_new_numbers_start_from_what_everyone_gets(run, tmp_path):
    """As all are after a SuperLink without authentication was started again. The old ones are not waited for."""
    run(RANKS).save(tmp_path / "clair.safetensors")
    strategy, everyone, grid = started_again(tmp_path / "clair.safetensors", first=5000)
    for mine in sent(strategy, everyone, grid).values():
        np.testing.assert_equal(mine, tensors(everyone))
    strategy.start(grid, everyone, num_rounds=1, timeout=5)
    assert set(strategy.rounds[-1].verdicts) == {5000, 5001, 5002, 5003, 5004} and not strategy.rounds[-1].failed


def test_nothing_is_kept_of_no_round(tmp_path):
    ClairStrategy(nodes.config(4)).save(tmp_path / "clair.safetensors")
    strategy, everyone, _ = started_again(tmp_path / "clair.safetensors")
    assert strategy.rounds == [] and everyone is None


def test_another_file_is_refused(tmp_path):
    save_file({"w": np.ones(2)}, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("no")
    for name in ("other.safetensors", "text"):
        with pytest.raises(ValueError, match=r"path must be what a strategy saved.*got .*"):
            ClairStrategy(nodes.config(4)).load(tmp_path / name)


def test_rounds_are_told_without_numpy(run, tmp_path):
    """Every number of a round is Python's: it goes through JSON and is the same."""
    strategy = run(RANKS, {3: "contaminated"}, rounds=1)
    strategy.save(tmp_path / "clair.safetensors")
    after, _, _ = started_again(tmp_path / "clair.safetensors")
    assert after.rounds == strategy.rounds and after.rounds[0].verdicts[1003].verdict == "unrelated"
