"""What nodes claim of their data: it weighs the median, within bounds, and no false claim stops a run."""

import numpy as np
import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import MetricRecord
from safetensors.numpy import load_file
from test_as_folders import at_scale_1, written

from clairjax import adapters
from clairjax.flower import tensors


FALSE = {
    "none": {},
    "no number": {"num-examples": float("nan")},
    "negative": {"num-examples": -5},
    "zero": {"num-examples": 0},
    "infinite": {"num-examples": float("inf")},
    "a list": {"num-examples": [60, 60]},
    "twice": None,
}


def claiming(claims):
    """Nodes that say these numbers of examples; a mapping is the whole record, None two records."""
    app = nodes.make_app()

    def node(message, context):
        answer, said = app(message, context), claims.get(int(context.node_config["partition-id"]), 60)
        if said is None:
            answer.content["more"] = MetricRecord({"num-examples": 1})
        elif "arrays" in answer.content:
            answer.content["metrics"] = MetricRecord(said if isinstance(said, dict) else {"num-examples": said})
        return answer

    return node


def median(strategy):
    return {key: each.tobytes() for key, each in tensors(strategy.result.arrays).items()}


def test_the_median_is_weighed_as_by_samples_of_folders(run, tmp_path):
    claims = {0: 10, 1: 500, 2: 60, 3: 100, 4: 61.5}
    ranks = [4] * 5
    strategy = run(ranks, rounds=1, app=claiming(claims), fraction_evaluate=0.0)
    folders = written(tmp_path / "in", strategy, ranks)
    found = adapters.refine(adapters.load(folders), rank=4)
    samples = {f"{1000 + k}": count for k, count in claims.items()}
    adapters.save(found, tmp_path / "out", samples=samples)
    everyone = load_file(tmp_path / "out" / "global" / "adapter_model.safetensors")
    np.testing.assert_equal(at_scale_1(tensors(strategy.result.arrays), 4), everyone)
    alike = run(ranks, rounds=1, app=claiming(claims), fraction_evaluate=0.0, samples=False)
    assert median(alike) == median(run(ranks, rounds=1, fraction_evaluate=0.0)) != median(strategy)


@pytest.mark.parametrize("how", FALSE)
def test_a_false_claim_counts_as_the_middle_one(run, how):
    others = {0: 20, 1: 60, 3: 90, 4: 60}
    false = run([4] * 5, rounds=1, app=claiming(others | {2: FALSE[how]}), fraction_evaluate=0.0)
    middle = run([4] * 5, rounds=1, app=claiming(others | {2: 60}), fraction_evaluate=0.0)
    assert false.rounds[0].members == middle.rounds[0].members == (1000, 1001, 1002, 1003, 1004)
    assert median(false) == median(middle)


def test_no_claim_weighs_more_than_a_third(run):
    large, larger = (run([4] * 5, rounds=1, app=claiming({2: count}), fraction_evaluate=0.0) for count in (1e3, 1e300))
    assert median(large) == median(larger)
    assert median(large) != median(run([4] * 5, rounds=1, app=claiming({}), fraction_evaluate=0.0))


def test_claims_whose_sum_is_infinite_are_claims(run):
    """Nor does one that Flower itself cannot send stop a run."""
    largest = float(np.finfo(float).max)
    strategy = run([4] * 6, rounds=1, app=claiming({1: largest, 2: largest, 4: 10**400}), fraction_evaluate=0.0)
    assert {*strategy.rounds[0].members} >= {1000, 1001, 1002, 1003, 1005}
    assert all(np.isfinite(each).all() for each in tensors(strategy.result.arrays).values())
