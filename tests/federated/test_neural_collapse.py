"""Neural collapse: Figure 2's heads, the floors, gradients where distances have none, and the server's step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.federated import collapse_metrics, neural_collapse, neural_collapse_step


distance = jax.jit(neural_collapse, static_argnames="local")
slope_of = jax.jit(jax.grad(neural_collapse))
metrics = jax.jit(collapse_metrics)
PAIRS = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], bool)  # Figure 2: three clients, two of three classes each
TRIANGLE = np.array([[1, 0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])


def opposite(mask):
    """A locally optimal head of two classes: opposite directions."""
    head = np.zeros((3, 2))
    head[np.flatnonzero(mask)] = [[0.6, 0.8], [-0.6, -0.8]]
    return head


def test_figure_2():
    """Opposite heads are at the local optimum and not the global one; a part of a common triangle the other way."""
    local = np.stack([opposite(mask) for mask in PAIRS])
    common = TRIANGLE[None] * PAIRS[:, :, None]
    values = np.array([metrics(jnp.asarray(heads), jnp.asarray(PAIRS)) for heads in (local, common)])
    # Grams by hand: opposite [[1, −1], [−1, 1]]/2; of a triangle [[1, −½], [−½, 1]]/√2.5; the global target of two
    # classes out of three is [[2, −1], [−1, 2]]/(3√2).
    to_target = lambda a, b: np.sqrt(2 * ((a - 2 / 18**0.5) ** 2 + (b + 1 / 18**0.5) ** 2))
    np.testing.assert_allclose(values[0], [to_target(0.5, -0.5), 0], atol=1e-7)
    third = np.sqrt(2 * ((2.5**-0.5 - 0.5) ** 2 + (0.5 - 0.5 * 2.5**-0.5) ** 2))
    np.testing.assert_allclose(values[1], [to_target(2.5**-0.5, -0.5 * 2.5**-0.5), third], rtol=1e-6)
    assert values[1, 0] < values[0, 0] and values[0, 1] < values[1, 1]


@pytest.mark.parametrize(("own", "floor"), [(2, 0.573), (5, 0.313)])
def test_a_client_that_lacks_classes_has_a_floor(own, floor):
    """The nearest of all Grams of norm 1 is the target itself, scaled up to norm 1: 1 − ‖target‖ away."""
    target = np.zeros((10, 10))
    target[:own, :own] = (np.eye(own) - 0.1) / 3
    head = np.linalg.cholesky(target + 1e-12 * np.eye(10))
    found = distance(jnp.asarray(head), jnp.arange(10) < own)
    np.testing.assert_allclose(found, 1 - np.linalg.norm(target), atol=1e-5)
    assert abs(float(found) - floor) < 5e-4


def test_a_simplex_has_distance_and_slope_zero():
    full = jnp.ones(3, bool)
    value, slope = (f(jnp.asarray(TRIANGLE), full) for f in (distance, slope_of))
    assert value < 1e-7 and np.isfinite(slope).all()
    zero = jnp.zeros((3, 2))
    assert (slope_of(zero, full) == 0).all()


def test_slopes_are_those_of_differences(check_derivative, rng):
    mask = jnp.array([True, False, True, True])
    check_derivative(lambda head: neural_collapse(head, mask), jnp.asarray(rng.standard_normal((4, 5))))


def test_one_class_is_no_simplex():
    """It counts in the global mean, and not in the local one."""
    heads = jnp.asarray(np.stack([opposite(PAIRS[0]), opposite(PAIRS[1])]))
    masks = jnp.asarray([PAIRS[0], [True, False, False]])
    at_large, alone = metrics(heads, masks)
    assert np.isfinite(at_large) and alone < 1e-7
    assert np.isnan(distance(heads[1], masks[1], local=True))


@pytest.mark.parametrize("client", [0, 1])
def test_a_head_that_is_nan_shows_in_both_metrics(client):
    """It is not left out as a client of one class is."""
    heads = np.stack([opposite(mask) for mask in PAIRS])
    heads[client, 0, 0] = np.nan
    assert np.isnan(metrics(jnp.asarray(heads), jnp.asarray(PAIRS))).all()


def test_the_server_moves_each_head_by_its_part_of_the_mean(rng):
    heads, masks = jnp.asarray(rng.standard_normal((3, 3, 2))), jnp.asarray(PAIRS)
    moved = jax.jit(neural_collapse_step)(heads, masks, 0.5)
    slopes = jnp.stack([slope_of(head, mask) for head, mask in zip(heads, masks, strict=True)])
    np.testing.assert_allclose(moved, heads - 0.5 / 3 * slopes, rtol=1e-6, atol=1e-9)
