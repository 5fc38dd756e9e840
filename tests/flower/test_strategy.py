"""A run of several rounds in this process: who is named, what each node gets, and that nothing sent stops it."""

import logging
from dataclasses import replace

import numpy as np
import pytest


pytest.importorskip("flwr")

import nodes
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from clairjax.flower import ClairStrategy, LocalGrid, arrays, tensors


def without_time(strategy):
    return [replace(one, seconds=0.0) for one in strategy.rounds]


def held(strategy):
    strategy._settle()
    return {node: {key: each.tobytes() for key, each in mine.held.items()} for node, mine in strategy._mine.items()}


def test_the_stranger_is_named_in_every_round(run):
    strategy = run([4] * 5, {3: "contaminated"}, rounds=3)
    assert [one.number for one in strategy.rounds] == [1, 2, 3]
    for one in strategy.rounds:
        assert one.members == (1000, 1001, 1002, 1004)
        assert list(one.excluded) == [1003] and one.excluded[1003].startswith("unrelated: ")
        assert not one.failed and set(one.verdicts) == set(range(1000, 1005))


def test_a_round_is_the_same_whatever_the_order_of_arrival(run):
    class LastFirst(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return list(super().send_and_receive(messages, timeout=timeout))[::-1]

    app, found = nodes.make_app(), []

    def uneven(message, context):
        """As many nodes say one name of a number as another, and no sum of them is exact."""
        answer, number = app(message, context), context.node_config["partition-id"]
        answer.content["metrics"] = MetricRecord({"num-examples": 3 + number, f"loss-{number // 3}": number / 7})
        return answer

    for kind in (LocalGrid, LastFirst):
        grid = kind(uneven, nodes.fleet([4, 2, 8, 4, 4, 2], {3: "contaminated", 1: "nan"}))
        strategy = ClairStrategy(nodes.config(4), blend=0.5)
        result = strategy.start(grid, arrays(nodes.start(4)), num_rounds=2, timeout=5)
        metrics = {number: dict(each) for number, each in result.train_metrics_clientapp.items()}
        found.append((held(strategy), without_time(strategy), tensors(result.arrays), metrics))
    for one, other in zip(*(each[:2] for each in found), strict=True):
        assert one == other
    np.testing.assert_equal(found[0][2:], found[1][2:])


@pytest.mark.parametrize("how", nodes.NOT_WELL)
def test_nothing_that_a_node_sends_stops_a_run_or_moves_the_others(run, how):
    """The others' round is the one without it."""
    with_it = run([4] * 6, {2: how}, rounds=1)
    without = run([4] * 6, rounds=1, silent=lambda node, number: node == 1002)
    (one,), (other,) = with_it.rounds, without.rounds
    assert one.excluded.get(1002)
    assert one.members == other.members == (1000, 1001, 1003, 1004, 1005)
    mine, theirs = held(with_it), held(without)
    assert all(mine[node] == theirs[node] for node in other.members)


SAID = {
    "nan": "must be finite, got NaN",
    "bfloat16": "send float16 or float32: bfloat16 does not survive",
    "another rank": "the rank must be the configuration's, 4",
    "keys": "must be those of the initial arrays, got model.layers.0.self_attn.o_proj",
    "shape": r"must be of shape \(out, in\) \(24, 32\), got \(24, 33\)",
    "for ever": "rank_pattern from a node must have plain names",
    "masked": "secure aggregation .* cannot be used",
    "zeros": "idle: zeros in every module",
    "no record": "one ArrayRecord, got 0",
}


@pytest.mark.parametrize("how", SAID)
def test_the_reason_says_what_is_wrong(run, how):
    reasons = run([4] * 4, {2: how}, rounds=1).rounds[0].excluded
    with pytest.raises(ValueError, match=SAID[how]):
        raise ValueError(reasons[1002])


def test_errors_silence_and_absence_are_named_each_round(run):
    class Leaving(LocalGrid):
        """Node 1004 is gone after the first round."""

        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            self.contexts.pop(1004, None)
            return replies

    bad = {1: "error", 5: "contaminated"}
    grid = Leaving(
        nodes.make_app(), nodes.fleet([4] * 6, bad), silent=lambda node, number: (node, number) == (1003, 2)
    )
    strategy = ClairStrategy(nodes.config(4))
    strategy.start(grid, arrays(nodes.start(4)), num_rounds=3, timeout=5)
    first, second, third = (one.failed for one in strategy.rounds)
    assert first == {1001: "an error: RuntimeError('out of memory, say')"}
    assert second == first | {1003: "no reply", 1004: "gone, and not asked"}
    assert third == first | {1004: "gone, and not asked"}
    assert all(1005 in one.excluded for one in strategy.rounds)


def test_what_a_superlink_says_for_a_node_that_is_gone_is_no_node(run):
    """It does so in its own name, the number 1, and who was asked is silent."""

    class Speaking(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = list(super().send_and_receive(messages, timeout=timeout))
            gone = Message(Error(code=3, reason="Node unavailable"), reply_to=messages[0])
            gone.metadata.__dict__["_src_node_id"] = 1
            return [*replies[1:], gone]

    grid = Speaking(nodes.make_app(), nodes.fleet([4] * 5))
    strategy = ClairStrategy(nodes.config(4))
    strategy.start(grid, arrays(nodes.start(4)), num_rounds=1, timeout=5)
    assert strategy.rounds[0].failed == {1000: "no reply"} and len(strategy.rounds[0].members) == 4


def test_with_fewer_than_three_usable_nothing_is_shared(run):
    strategy = run([4] * 4, {0: "nan", 1: "nan"}, rounds=1)
    (one,) = strategy.rounds
    assert not one.members and set(one.excluded) == {1000, 1001} and "fewer than 3" in one.why
    assert not strategy.result.arrays
    start, asked = {key: each.tobytes() for key, each in nodes.start(4).items()}, sent_by(strategy, "train")
    assert asked[1000] == start  # what cannot be used is not gone on with
    assert asked[1002] == held(strategy)[1002] != start


def test_who_sends_what_cannot_be_used_begins_again(run):
    app = nodes.make_app()

    def later(message, context):
        answer = app(message, context)
        second = message.content["config"]["server-round"] == 2 and "arrays" in answer.content
        bad = second and context.node_config["partition-id"] == 0
        return nodes.spoil(answer, tensors(answer.content["arrays"]), "nan", 4) if bad else answer

    strategy = run([4] * 5, app=later, blend=0.5)
    assert [sorted(one.excluded) for one in strategy.rounds] == [[], [1000]]
    median = {key: each.tobytes() for key, each in tensors(strategy.result.arrays).items()}
    assert sent_by(strategy, "train")[1000] == median


def test_with_all_idle_nothing_is_shared(run):
    (one,) = run([4] * 4, {k: "zeros" for k in range(4)}, rounds=1).rounds
    assert not one.members and "zeros in every module" in one.why


def sent_by(strategy, kind):
    """What each node would be sent now, as bytes."""
    everyone = strategy.result.arrays or arrays(nodes.start(4))
    configure = {"train": strategy.configure_train, "evaluate": strategy.configure_evaluate}[kind]
    messages = configure(9, everyone, ConfigRecord(), strategy.grid)
    content = {each.metadata.dst_node_id: tensors(each.content["arrays"]) for each in messages}
    return {node: {key: each.tobytes() for key, each in mine.items()} for node, mine in content.items()}


def test_each_node_gets_its_own_at_its_own_rank(run):
    strategy = run([2, 4, 8, 4, 2, 8], {3: "contaminated"}, rounds=1, blend=0.5)
    sent = sent_by(strategy, "train")
    last = {node: mine.held for node, mine in strategy._mine.items()}
    a = nodes.key("q_proj", "A")
    assert [len(last[node][a]) for node in sorted(last)] == [2, 4, 8, 4, 2, 8]
    assert len({mine[a] for mine in sent.values()}) == 6
    own = tensors(strategy.grid.contexts[1003].state["clairjax-own"])
    np.testing.assert_equal(last[1003], own)  # the stranger goes on with its own


def test_all_get_the_median_where_they_are_to_get_one(run):
    strategy = run([4] * 5, {3: "contaminated"}, rounds=1, personal=False)
    median = {key: each.tobytes() for key, each in tensors(strategy.result.arrays).items()}
    for kind in ("train", "evaluate"):
        assert all(mine == median for mine in sent_by(strategy, kind).values())


def test_a_round_in_which_all_get_the_median_says_so(run):
    (one,) = run([4] * 5, rounds=1, personal=False).rounds
    assert one.t == 0.0 and all(set(mine) == {0.0, 1.0} for mine in one.losses.values())
    with pytest.raises(ValueError, match=r"blend must be None where all get the median, personal=False, got 0\.5"):
        ClairStrategy(nodes.config(4), personal=False, blend=0.5)


def test_a_round_that_shares_nothing_is_told_why(run, caplog):
    with caplog.at_level("WARNING", "flwr"):
        logger = logging.getLogger("flwr")
        logger.addHandler(caplog.handler)
        run([4] * 4, {0: "nan", 1: "nan"}, rounds=1)
        logger.removeHandler(caplog.handler)
    assert "2 usable adapters, fewer than 3: nothing is shared" in caplog.text


def test_messages_share_no_object(run):
    strategy = run([4] * 4, rounds=1, personal=False)
    messages = strategy.configure_train(2, strategy.result.arrays, ConfigRecord({"lr": 0.1}), strategy.grid)
    assert len({id(each.content) for each in messages}) == 4
    assert len({id(each.content["config"]) for each in messages}) == 4
    assert {(each.content["config"]["lr"], each.content["config"]["server-round"]) for each in messages} == {(0.1, 2)}


def test_part_of_the_nodes_a_round(run):
    strategy = run([4] * 8, {2: "contaminated"}, rounds=4, fraction_train=0.75, fraction_evaluate=0.5)
    for one in strategy.rounds:
        assert len(one.members) + len(one.excluded) == 6 and set(one.excluded) <= {1002} and not one.failed
    taken = {node for one in strategy.rounds for node in one.verdicts}
    assert len(taken) > 6 and set(strategy._mine) == taken  # also of who was not in the last round


@pytest.mark.parametrize("seed", range(20))
def test_mixed_ranks_hide_no_stranger(run, seed):
    """Of ranks 2, 4 and 8, each kind of rank once the stranger's."""
    app = nodes.make_app()
    ranks, bad = [2, 4, 8, 2, 4, 8], seed % 6
    fleet = {
        node: about | {"partition-id": about["partition-id"] + 50 * seed}
        for node, about in nodes.fleet(ranks, {bad: "contaminated"}).items()
    }
    strategy = ClairStrategy(nodes.config(4), fraction_evaluate=0.0)
    strategy.start(LocalGrid(app, fleet), arrays(nodes.start(4)), num_rounds=1, timeout=5)
    assert list(strategy.rounds[0].excluded) == [1000 + bad]


def test_metrics_are_of_members_whose_metrics_can_be_averaged(run):
    app = nodes.make_app()

    def lying(message, context):
        answer = app(message, context)
        wrong = {
            0: {"num-examples": float("nan"), "loss": 1.0},
            1: {"num-examples": -5, "loss": 1.0},
            2: {"num-examples": 60, "loss": float("inf")},
            3: {"num-examples": 60, "more": 1.0},
            4: {"num-examples": [60], "loss": 1.0},
        }.get(int(context.node_config["partition-id"]))
        if wrong is not None:
            answer.content["metrics"] = MetricRecord(wrong)
        return answer

    strategy = run([4] * 8, {7: "contaminated"}, rounds=2, app=lying)
    for metrics in strategy.result.train_metrics_clientapp.values():
        assert metrics["members"] == 7 and np.isfinite(metrics["loss"])
    assert all(np.isfinite(each["loss"]) for each in strategy.result.evaluate_metrics_clientapp.values())

    def boasting(message, context):
        answer = app(message, context)
        answer.content["metrics"] = MetricRecord({"num-examples": 60, "members": 99, "failed": 99})
        return answer

    strategy = run([4] * 4, rounds=1, app=boasting)
    assert dict(strategy.result.train_metrics_clientapp[1]) == {"members": 4, "excluded": 0, "failed": 0}

    def refuses(records, weight):
        raise KeyError("accuracy")

    strategy = run([4] * 4, rounds=1, train_metrics_aggr_fn=refuses, evaluate_metrics_aggr_fn=refuses)
    assert dict(strategy.result.train_metrics_clientapp[1]) == {"members": 4, "excluded": 0, "failed": 0}


def test_what_no_node_is_to_blame_for_is_refused_before_anything_is_sent():
    for wrong in ({"blend": 2.0}, {"shared": "diagonals"}, {"shared_rank": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            ClairStrategy(nodes.config(4), **wrong)
    grid = LocalGrid(nodes.make_app(), nodes.fleet([4] * 3))
    with pytest.raises(ValueError, match="shared_rank must be at most 24, the smallest side of a module, got 25"):
        ClairStrategy(nodes.config(4), shared_rank=25).start(grid, arrays(nodes.start(4)), num_rounds=1)
    for fields, initial, why in (
        ({"peft_type": "IA3"}, arrays(nodes.start(4)), "peft_type must be LORA"),
        (nodes.config(8), arrays(nodes.start(4)), "the rank must be the configuration's, 8"),
        (nodes.config(4), ArrayRecord({"w": Array(np.ones(2))}), "tensors must be named base_model"),
    ):
        with pytest.raises(ValueError, match=f"initial.*{why}"):
            ClairStrategy(fields).start(grid, initial, num_rounds=1)
