"""The verdict on each client from made findings: who is in which module, copies, and modules without a majority."""

import numpy as np

from clairjax.adapters._verdict import Finding, judge
from clairjax.alignment._reach import FAR


NAMES = [f"c{k}" for k in range(7)]


def finding(module, clients=NAMES, members=None, copies=(), far=None, times=3.0):
    """Clients at distance 1, all but `far`; `copies` of c0 at its place."""
    places = np.eye(len(clients)) / np.sqrt(2)
    for k, name in enumerate(clients):
        places[k] *= times if name == far else 1
        places[k] = places[clients.index("c0")] if name in copies else places[k]
    table = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return Finding(
        module=module,
        shape=(3, 4),
        clients=tuple(clients),
        members=tuple(clients if members is None else members),
        votes=dict.fromkeys(clients, 1.0),
        distance=dict.fromkeys(clients, 1.0),
        copies=dict.fromkeys(copies, "c0"),
        threshold=1.0,
        rank=1,
        status="",
        whole=table,
        outside=table,
    )


def verdicts(*findings, unusable=None):
    return judge([*NAMES], {each.module: each for each in findings}, unusable or {})


def words(found):
    return [each.verdict for each in found.values()]


def test_far_by_all_modules_is_out_whatever_the_votes():
    found = verdicts(*(finding(f"m{k}", far="c3") for k in range(3)))
    assert words(found) == ["member"] * 3 + ["contaminated"] + ["member"] * 3
    assert found["c3"].reach > FAR and found["c3"].voted_out == () and found["c3"].modules == 3
    assert found["c0"].reach == 1


def test_voted_out_of_more_than_half_is_out_however_near():
    without = [name for name in NAMES if name != "c2"]
    assert verdicts(finding("a", members=without), finding("b"))["c2"].verdict == "member"
    found = verdicts(finding("a", members=without), finding("b", members=without), finding("c"))["c2"]
    assert (found.verdict, found.voted_out, found.modules) == ("contaminated", ("a", "b"), 3)


def test_without_a_majority_nobody_is_voted_out_and_who_is_nowhere_else_is_undecided():
    found = verdicts(finding("a", members=()), finding("b", clients=NAMES[:4]))
    assert words(found) == ["member"] * 4 + ["undecided"] * 3
    assert found["c0"].modules == 2 and found["c6"].modules == 1 and found["c6"].reach is None
    assert words(verdicts(finding("a", members=()))) == ["undecided"] * 7


def test_copies_stand_and_fall_with_whom_they_copy():
    """Four of seven send one adapter, which is far: one vote, so it is out, and they with it."""
    copies = ("c1", "c2", "c3")
    found = verdicts(*(finding(f"m{k}", copies=copies, far="c0") for k in range(3)))
    assert words(found) == ["contaminated"] * 4 + ["member"] * 3
    assert len({found[name].reach for name in ("c0", *copies)}) == 1


def test_copies_that_differ_in_few_modules_are_copies_all_the_same():
    """Or one module of their own would give them many votes."""
    copies = NAMES[3:]
    honest = finding("a", copies=copies)
    assert words(verdicts(finding("m0"), honest, finding("b", copies=copies))) == ["member"] * 7
    far = verdicts(finding("m0"), *(finding(name, copies=copies, far="c0", times=6.0) for name in "abcd"))
    assert words(far) == ["contaminated", "member", "member"] + ["contaminated"] * 4
    once = verdicts(finding("m0", copies=copies), finding("m1", far="c5"), finding("m2", far="c5"))
    assert once["c5"].verdict == "contaminated" and once["c6"].verdict == once["c0"].verdict == "member"


def test_who_is_unusable_or_in_no_module_has_no_reach():
    found = verdicts(finding("a", clients=NAMES[:5]), unusable={"c6": "NaN"})
    assert words(found) == ["member"] * 5 + ["undecided", "unusable"]
    assert found["c6"].reason == "NaN" and found["c5"].reach is found["c6"].reach is None
    assert words(verdicts(unusable={"c6": "NaN"})) == ["undecided"] * 6 + ["unusable"]
