"""The verdict on folders, in words: what it says of whom, and that nothing is compiled for it."""

import jax
import numpy as np
import pytest


pytest.importorskip("safetensors")

from folders import MODULES, factors, write

import clairjax as cj


def verdicts(folders):
    return cj.adapters.refine(cj.adapters.load(folders)).verdicts


def fleet(root, changes, count=8, **rest):
    """`changes` by client."""
    return [write(root, k, change=changes.get(k), **rest) for k in range(count)]


def other_task(seed):
    """With rows as others have, and columns of its own."""

    def change(up, down):
        draw = np.random.default_rng([seed, *up.shape])
        return np.sqrt(len(down)) * np.linalg.qr(draw.normal(size=up.shape))[0], down

    return change


def test_each_kind_is_said_with_its_numbers(tmp_path):
    changes = {
        0: lambda up, down: (-3 * up, down),
        1: lambda up, down: (5 * up, down),
        2: other_task(0),
        3: lambda up, down: (0 * up, down),
        4: lambda up, down: (np.nan * up, down),
    }
    found = verdicts(fleet(tmp_path, changes, 13))
    words = ["sign-flipped", "rescaled", "unrelated", "idle", "unusable"] + ["member"] * 8
    assert [each.verdict for each in found.values()] == words
    assert [each.member for each in found.values()] == [False, True, False, False, False] + [True] * 8
    said = {name: each.reason for name, each in found.items()}
    usual = found["client5"].usual
    assert f"{usual:.2f} ± {found['client5'].spread:.2f} is usual" in said["client5"]
    assert said["client0"].startswith(
        f"it points against the others: its agreement with the others is -{usual:.2f}"[:-2]
    )
    assert said["client1"].startswith("its update has ") and found["client1"].size == pytest.approx(5, rel=0.3)
    assert said["client1"].endswith("its direction is a member's")
    assert said["client3"].startswith("zeros in every module") and said["client4"].startswith("NaN or infinite")
    assert found["client3"].agreement is found["client4"].size is None and found["client2"].agreement < 0.2


def test_unrelated_clients_that_agree_are_told_of_each_other(tmp_path):
    """Two of one other task, with noise of their own, and one of a third."""

    def alike(k):
        return lambda up, down: (
            other_task(1)(up, down)[0] + 0.1 * np.random.default_rng(k).normal(size=up.shape),
            down,
        )

    found = verdicts(fleet(tmp_path, {0: alike(0), 1: alike(1), 2: other_task(2)}, 11))
    assert [each.verdict for each in found.values()] == ["unrelated"] * 3 + ["member"] * 8
    assert [found[f"client{k}"].agrees_with for k in range(3)] == [("client1",), ("client0",), ()]
    assert (
        found["client0"].reason.endswith("it agrees with client1") and "agrees with c" not in found["client2"].reason
    )


def test_copies_are_named_and_have_one_vote(tmp_path):
    """Seven of thirteen send one sign-flipped adapter, each in another factorisation and size."""
    places = {shape: place for place, shape in enumerate(MODULES.values())}

    def copy(k):
        def change(up, down):
            out, in_ = len(up), down.shape[1]
            up, down = factors(50, places[out, in_], out, in_)
            turn = np.linalg.qr(np.random.default_rng(k).normal(size=(len(down), len(down))))[0]
            return -(1 + k) * up @ turn, turn.T @ down

        return change

    found = verdicts(fleet(tmp_path, {k: copy(k) for k in range(7)}, 13))
    assert [each.verdict for each in found.values()] == ["sign-flipped"] * 7 + ["member"] * 6
    assert found["client2"].copies == tuple(f"client{k}" for k in range(7) if k != 2)
    assert "it sent what client0, client1" in found["client2"].reason and not found["client9"].copies


def test_with_tasks_of_their_own_nobody_is_a_member_and_it_is_said_why(tmp_path):
    found = verdicts(fleet(tmp_path, {k: other_task(k) for k in range(8)}))
    assert {each.verdict for each in found.values()} == {"undecided"}
    assert {each.reason for each in found.values()} == {
        "the clients have too little in common, or differ too much among themselves, for directions to tell"
    }


def test_modules_tell_what_they_hold_of_each_client(tmp_path):
    first, _, last = MODULES
    twice = write(tmp_path, 6, modules=[first, last], change=lambda up, down: (2 * up, down))
    folders = [*fleet(tmp_path, {}, 6), twice]
    loaded = cj.adapters.load(folders)
    found = cj.adapters.refine(loaded)
    assert found.verdicts["client6"].modules == 2 and found.verdicts["client0"].modules == 3
    for module, finding in found.findings.items():
        assert set(finding.size) == set(finding.agreement) == set(finding.clients)
        assert finding.shape == MODULES[module]
    assert found.findings[first].size["client6"] == pytest.approx(2, rel=0.3)
    assert "client6" not in found.findings["layers.0.mlp.up"].clients


def test_nothing_is_compiled(tmp_path, caplog):
    folders = [write(tmp_path, k, config={"r": 6, "lora_alpha": 6 + k}) for k in range(5)]
    loaded = cj.adapters.load(folders)
    with caplog.at_level("WARNING"), jax.log_compiles():
        cj.adapters.refine(loaded)
    assert not [each for each in caplog.messages if "ompil" in each]


@pytest.mark.parametrize("count", [4, 60])
def test_the_picture_has_a_row_a_client_and_whom_it_does_not_compare(count, tmp_path):
    from clairjax.adapters._plot import heat_map

    changes = {0: lambda up, down: (-up, down), 1: lambda up, down: (0 * up, down)}
    found = cj.adapters.refine(cj.adapters.load(fleet(tmp_path / "in", changes, count)))
    heat_map(found, tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 5000
