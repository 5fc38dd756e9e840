"""The generator of clients that share a subspace exactly."""

import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.data import SharedSubspace


@pytest.mark.parametrize(("rank", "condition"), [(1, 1.0), (2, 1.0), (3, 4.0)])
def test_targets_lie_in_the_model_and_heads_have_the_spectrum_promised(key, rank, condition):
    problem = SharedSubspace(4000, 3, 6, rank, condition).generate(key=key)
    np.testing.assert_allclose(problem.basis.T @ problem.basis, np.eye(rank), atol=1e-12)
    exact = jnp.einsum("nmd,dk,nk->nm", problem.inputs, problem.basis, problem.heads)
    np.testing.assert_allclose(problem.targets, exact, atol=1e-10)
    values = np.linalg.svd(problem.heads / 4000**0.5, compute_uv=False)
    expected = np.linspace(condition, 1, rank) if rank > 1 else np.ones(1)
    np.testing.assert_allclose(values, expected, rtol=0.06)
    assert (jnp.linalg.norm(problem.heads, axis=1) <= condition * rank**0.5 + 1e-9).all()


def test_noise_has_its_standard_deviation_and_dtype_is_kept(key, dtype):
    problem = SharedSubspace(50, 200, 4, 2, noise=0.5).generate(key=key, dtype=dtype)
    rest = problem.targets - jnp.einsum("nmd,dk,nk->nm", problem.inputs, problem.basis, problem.heads)
    assert {leaf.dtype for leaf in (problem.inputs, problem.targets, problem.basis, problem.heads)} == {dtype}
    assert abs(rest.std() - 0.5) < 4 * 0.5 / (2 * 10_000) ** 0.5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 3, 4, 2), "clients and samples must be at least 1, got 0 and 3."),
        ((3, 0, 4, 2), "clients and samples must be at least 1, got 3 and 0."),
        ((3, 3, 4, 4), "rank must be at least 1 and below features = 4, got 4."),
        ((3, 3, 4, 0), "rank must be at least 1 and below features = 4, got 0."),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes, message):
    with pytest.raises(ValueError) as error:
        SharedSubspace(*sizes)
    assert str(error.value) == message
