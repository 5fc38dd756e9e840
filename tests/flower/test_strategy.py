"""A run of several rounds in this process: who is named, what each node gets, and that nothing sent stops it."""

import pytest


pytest.importorskip("flwr")


def test_the_stranger_is_named_in_every_round(run):
    strategy = run([4] * 5, {3: "contaminated"}, rounds=3)
    assert [one.number for one in strategy.rounds] == [1, 2, 3]
    for one in strategy.rounds:
        assert one.members == (1000, 1001, 1002, 1004)
        assert list(one.excluded) == [1003] and one.excluded[1003].startswith("unrelated: ")
