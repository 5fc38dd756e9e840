"""One t for the fleet from clients' losses, and the command that measures them."""

import json
import sys

import numpy as np
import pytest

import clairjax as cj


T = (0.0, 0.25, 0.5, 0.75, 1.0)


def claims(gains, noise=0.0, count=10):
    """Losses of clients who gain this much at each t."""
    rng = np.random.default_rng(3)
    return {
        f"client{k}": dict(zip(T, 3.0 - np.array(gains) + noise * rng.normal(size=5), strict=True))
        for k in range(count)
    }


@pytest.mark.parametrize(
    ("gains", "best"), [([5, 4, 3, 2, 0], 0.0), ([-5, 1, 4, 2, 0], 0.5), ([-5, -4, -3, -2, 0], 1.0)]
)
def test_what_serves_the_middle_client_best_is_chosen(gains, best):
    assert cj.adapters.choose(claims(gains, noise=0.1)) == best


@pytest.mark.parametrize("liars", [1, 4])
@pytest.mark.parametrize("lie", [1e9, -1e9])
@pytest.mark.parametrize(("gains", "best"), [([5, 4, 3, 2, 0], 0.0), ([-5, -4, -3, -2, 0], 1.0)])
def test_fewer_than_half_cannot_decide_for_the_others(gains, best, lie, liars):
    found = claims(gains, noise=0.1)
    for k in range(liars):
        found[f"client{k}"] = dict(zip(T, lie * np.arange(5.0), strict=True))
    assert cj.adapters.choose(found) == best


def test_where_the_best_is_within_chance_a_gain_beyond_it_is_taken():
    """Half of the clients gain much from sharing all and others lose; from sharing a part all gain."""
    gains = {0.0: [6, 5, 3, -3, -2, -4, 9], 0.5: [1, 1.1, 0.9, 1, 1.2, 0.8, 1], 1.0: [0] * 7}
    losses = {f"{k}": {t: -each[k] for t, each in gains.items()} for k in range(7)}
    assert np.median(gains[0.0]) > np.median(gains[0.5]) and cj.adapters.choose(losses) == 0.5


def test_a_gain_within_chance_is_none():
    """Nothing to be had at any t: own adapters in most draws, though the best of four looks like a gain."""
    chosen, apparent = [], []
    for draw in range(200):
        gains = np.random.default_rng(draw).normal(size=(10, 4))
        apparent.append(np.median(gains, axis=0).max() > 0)
        chosen.append(cj.adapters.choose({f"{k}": dict(zip(T, [*(-gains[k]), 0.0], strict=True)) for k in range(10)}))
    assert np.mean(apparent) > 0.9 and np.mean(np.array(chosen) < 1) < 0.12


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (
            {"a": {1.0: 1}, "b": {1.0: 1}},
            "losses must be from at least 3 clients, for a majority to be defined, got 2.",
        ),
        ({name: {0.5: 1} for name in "abc"}, "losses must be known at t = 1, a client's own adapter, got [0.5]."),
        (
            {"a": {0.0: 1, 1.0: 1}, "b": {1.0: 1}, "c": {1.0: 1}},
            "losses of client b must be for t of [0.0, 1.0], got [1.0].",
        ),
        (
            {name: {1.0: float("inf")} for name in "abc"},
            "the loss of client a at t = 1 must be a finite number, got inf.",
        ),
    ],
)
def test_losses_are_of_all_and_finite(losses, message):
    with pytest.raises(ValueError) as caught:
        cj.adapters.choose(losses)
    assert str(caught.value) == message


def run(code, client, tmp_path):
    command = cj.adapters.command(f"{sys.executable} -c '{code}' {{client}} {{adapter}}")
    return command(client, tmp_path)


@pytest.mark.parametrize(
    "name", ["a; touch broken", "$(touch broken)", "`touch broken`", "{adapter}", "a b", "'", "-c"]
)
def test_a_clients_name_is_one_word_whatever_it_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import json, sys; print(json.dumps(sys.argv[1:]), file=open('seen', 'w')); print('loss', 0.5)"
    assert cj.adapters.Command((sys.executable, "-c", code, "{client}", "{adapter}"))(name, tmp_path) == 0.5
    assert json.loads((tmp_path / "seen").read_text()) == [name, str(tmp_path)]
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(4)", "a command that ends with status 0, got 4, saying: no word."),
        ("raise OSError(3)", "a command that ends with status 0, got 1, saying: OSError: 3."),
        ("0", "a command that prints a loss last, got nothing."),
        ("print(3, chr(120))", "a command that prints a loss last, got 'x'."),
    ],
)
def test_a_command_that_fails_is_told_with_the_client(code, message, tmp_path):
    with pytest.raises(ValueError) as caught:
        run(code, "alice", tmp_path)
    assert str(caught.value) == f"the evaluation of client alice must be {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score.py {client}", "a command with the word {adapter}, for the folder to measure, got"),
        ("score 'py {adapter}", "a command whose quotes end, got"),
    ],
)
def test_a_text_that_is_no_command_is_refused(text, message):
    with pytest.raises(ValueError, match="evaluate must be ") as caught:
        cj.adapters.command(text)
    assert message in str(caught.value)


def test_a_command_that_is_not_there_is_told(tmp_path):
    with pytest.raises(
        ValueError, match=r"^the evaluation of client a must be a command that can be run, got /nowhere"
    ):
        cj.adapters.command("/nowhere/score {adapter}")("a", tmp_path)
