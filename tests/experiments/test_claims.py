"""Verdicts on claims: how often a table of them is wrong, and that what is there is found."""

import numpy as np
import pytest

from clairjax.experiments._claims import LEAST, LEVEL, Claim, Difference, above, above_apart, claims_table
from clairjax.sweep import Estimate


CELLS = 16


def fixed(word):
    """A difference that is true, false or undecided at any level."""
    return Difference({"true": 1.0, "false": -1.0, "undecided": 0.0}[word], 1e-6, 39, 40)


def verdicts(*claims):
    return [row[1] for row in claims_table("", claims).rows]


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        (["true", "true"], "true"),
        (["false"], "false"),
        (["undecided"] * 2, "undecided"),
        ([], "undecided"),
        (["true", "false", "false"], "true in 1, false in 2 of 3"),
        (["true", "undecided", "true"], "true in 2, undecided in 1 of 3"),
    ],
)
def test_a_claim_is_true_false_undecided_or_a_mixture(cases, verdict):
    assert verdicts(Claim("", [(fixed(word),) for word in cases], "")) == [verdict]


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [("true true", "true"), ("true undecided", "undecided"), ("undecided false", "false"), ("true false", "false")],
)
def test_a_case_of_several_differences_holds_where_all_do(parts, verdict):
    assert verdicts(Claim("", [tuple(map(fixed, parts.split()))], "")) == [verdict]


def most_of(tables):
    """How many of so many tables may be wrong, three standard deviations above the level's number."""
    return tables * LEVEL + 3 * np.sqrt(tables * LEVEL * (1 - LEVEL))


@pytest.mark.parametrize("replicates", [10, 40])
@pytest.mark.parametrize("apart", [False, True], ids=["the same replicates", "replicates of their own"])
def test_equal_methods_are_told_apart_in_one_table_of_twenty_at_most(replicates, apart):
    """Sixteen cells with noises of all sizes, of which two standard errors decide one in most tables."""
    draws, tables = np.random.default_rng(replicates + apart), 300
    sizes = np.geomspace(0.01, 100, CELLS)[:, None]
    two_errors = wrong = 0
    for _ in range(tables):
        common, one, other = draws.standard_normal((3, CELLS, replicates))
        if apart:
            pairs = zip(5 + one, 5 + sizes / 25 * other, strict=True)
            found = [above_apart(Estimate.of(a), Estimate.of(b), (replicates, replicates)) for a, b in pairs]
        else:
            found = [above(a, b) for a, b in zip(common + sizes * one, common + sizes * other, strict=True)]
        wrong += verdicts(Claim("", [(difference,) for difference in found], "")) != ["undecided"]
        two_errors += any(abs(difference.value) > 2 * difference.error for difference in found)
    assert wrong <= most_of(tables)
    assert two_errors > tables / 2  # what this is there for


def test_a_difference_that_is_there_is_found():
    draws = np.random.default_rng(0)
    common, one, other = draws.standard_normal((3, 40))
    lower, higher = common + 0.1 * one, 0.2 + common + 0.1 * other  # far less than the noise in common
    assert verdicts(Claim("", [(above(higher, lower),)] * CELLS, "")) == ["true"]
    assert verdicts(Claim("", [(above(lower, higher),)] * CELLS, "")) == ["false"]
    apart = above_apart(Estimate.of(higher), Estimate.of(lower), (40, 40))
    assert verdicts(Claim("", [(apart,)] * CELLS, "")) == ["undecided"]
    assert apart.error == pytest.approx(np.sqrt(2 * 1.01 / 40), rel=0.3)


@pytest.mark.parametrize("replicates", range(1, LEAST + 1))
def test_below_ten_replicates_nothing_is_decided(replicates):
    noise = 1e-9 * np.random.default_rng(0).standard_normal((2, replicates))
    word = "true" if replicates >= LEAST else "undecided"
    one, other = 5 + noise[0], 4 + noise[1]
    assert verdicts(Claim("", [(above(one, other),)], "")) == [word]
    for counts in ((replicates, 40), (40, replicates)):
        found = above_apart(Estimate.of(one), Estimate.of(np.append(other, other)), counts)
        assert verdicts(Claim("", [(found,)], "")) == [word]


def test_welch_s_degrees_of_freedom():
    from scipy.stats import ttest_ind

    draws = np.random.default_rng(0)
    one, other = draws.standard_normal(12), 3 * draws.standard_normal(30)
    found = above_apart(Estimate.of(one), Estimate.of(other), (12, 30))
    expected = ttest_ind(one, other, equal_var=False)
    assert found.freedom == pytest.approx(expected.df)
    assert found.value / found.error == pytest.approx(expected.statistic)
    for level in (0.99, 1.01):
        decided = found.is_positive(level * expected.pvalue) is not None
        assert decided == (level > 1)


def test_the_table_says_its_level():
    claims = [Claim("a", [(fixed("true"), fixed("true"))] * 4, "b"), Claim("c", [(fixed("false"),)] * 2, "d")]
    notes = " ".join(claims_table("", claims).notes)
    assert "at most 5 %" in notes and "10 comparisons" in notes and "two-sided, at 0.5 %" in notes
    assert "below 10 replicates, is undecided" in notes


def test_more_comparisons_ask_for_more():
    found = Difference(3.0, 1.0, 39, 40)  # a chance of 0.47 %
    assert [verdicts(Claim("", [(found,)] * count, "")) for count in (1, 10, 11)] == [
        ["true"],
        ["true"],
        ["undecided"],
    ]
