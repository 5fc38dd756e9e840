"""What is refused, each with its whole message: the argument, what it must be, what came."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import Factored, Penalty, ProximalGradient, Status, clair, decompose
from clairjax.alignment._clients import Clients


CLIENTS, OUT, IN = 5, 3, 4
PENALTY = Penalty(0.3, 0.1)
GOOD = np.random.default_rng(0).normal(size=(CLIENTS, OUT, IN)).astype(np.float32)

drivers = pytest.mark.parametrize(
    "driver", [clair, lambda weights, **options: decompose(weights, PENALTY, **options)], ids=["clair", "decompose"]
)


@contextlib.contextmanager
def refused(message):
    with pytest.raises(ValueError) as caught:
        yield
    assert str(caught.value) == message  # `match` would see notes that JAX adds inside a trace


def spoilt(*clients, value=np.nan):
    weights = GOOD.copy()
    for place, client in enumerate(clients):
        weights[client, place % OUT, 1] = value
    return weights


def of_dtype(name):
    return jnp.asarray(GOOD).astype(name) if name in ("float16", "bfloat16") else GOOD.astype(name)


KINDS = "float32 or float64 (convert half precision and integers first: the spectra need the digits)"

WEIGHTS = {
    "two clients": (GOOD[:2], "from at least 3 clients, for a majority to be defined, got 2"),
    "no clients": (GOOD[:0], "from at least 3 clients, for a majority to be defined, got 0"),
    "a matrix": (GOOD[0], "of shape (clients, out, in), got shape (3, 4)"),
    "four axes": (GOOD[None], "of shape (clients, out, in), got shape (1, 5, 3, 4)"),
    "no rows": (GOOD[:, :0], "without an empty axis, got shape (5, 0, 4)"),
    "no columns": (GOOD[:, :, :0], "without an empty axis, got shape (5, 3, 0)"),
    "a ragged list": ([[[1.0, 2.0]], [[1.0, 2.0]], [[1.0]]], "matrices of one shape, got a list of different shapes"),
    "a list of integers": ([[[1, 2]], [[3, 4]], [[5, 6]]], f"{KINDS}, got int64"),
    **{
        name: (of_dtype(name), f"{KINDS}, got {name}")
        for name in ("int32", "bool", "complex64", "float16", "bfloat16")
    },
    "one client not a number": (spoilt(2), "finite, got NaN or infinite values from client(s) 2"),
    "two clients not numbers": (spoilt(0, 3), "finite, got NaN or infinite values from client(s) 0, 3"),
    "infinite": (spoilt(1, 4, value=-np.inf), "finite, got NaN or infinite values from client(s) 1, 4"),
}


@drivers
@pytest.mark.parametrize(("weights", "must_be"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(driver, weights, must_be):
    with refused(f"weights must be {must_be}."):
        driver(weights)


def test_a_constant_of_a_trace_is_looked_at_too():
    with refused("weights must be finite, got NaN or infinite values from client(s) 2."):
        jax.jit(lambda low: decompose(spoilt(2), Penalty(low, 0.1)))(0.3)


@pytest.mark.parametrize("field", ["low_rank", "sparse"])
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan, np.inf])
@pytest.mark.parametrize("driver", [decompose, lambda weights, penalty: clair(weights, penalty=penalty)])
def test_penalty(driver, field, value):
    penalty = Penalty(**({"low_rank": 1.0, "sparse": 1.0} | {field: value}))
    with refused(f"penalty.{field} must be positive and finite, got {value}."):
        driver(GOOD, penalty)


def table(value):
    """Ones, and `value` for the pair of clients 1 and 3."""
    weights = np.ones((CLIENTS, CLIENTS))
    weights[1, 3] = weights[3, 1] = value
    return weights


PAIR_WEIGHTS = {
    "a table of another size": (np.ones((3, 3)), "a scalar or of shape (5, 5), got shape (3, 3)"),
    "a vector": (np.ones(CLIENTS), "a scalar or of shape (5, 5), got shape (5,)"),
    "one for each stacked pair": (np.ones(10), "a scalar or of shape (5, 5), got shape (10,)"),
    "zero": (0.0, "positive and finite, got 0.0"),
    "a negative pair": (table(-2.0), "positive and finite, got -2.0"),
    "a pair of weight zero": (table(0.0), "positive and finite, got 0.0"),
    "a pair that is not a number": (table(np.nan), "positive and finite, got nan"),
    "an infinite pair": (table(np.inf), "positive and finite, got inf"),
    "infinite": (np.inf, "positive and finite, got inf"),
    "not symmetric": (1 + np.triu(np.ones((5, 5))), "symmetric, got a table that differs from its transpose"),
}


@drivers
@pytest.mark.parametrize(("pair_weights", "must_be"), PAIR_WEIGHTS.values(), ids=PAIR_WEIGHTS)
def test_pair_weights(driver, pair_weights, must_be):
    with refused(f"pair_weights must be {must_be}."):
        driver(GOOD, pair_weights=pair_weights)


OPTIONS = {
    "rank 0": ({"rank": 0}, "rank must be between 1 and min(out, in) = 3, got 0."),
    "rank above min(out, in)": ({"rank": 4}, "rank must be between 1 and min(out, in) = 3, got 4."),
    "rank above the solver's": (
        {"rank": 3, "solver": Factored(max_rank=2)},
        "rank must be at most the solver's max_rank = 2, got 3.",
    ),
    "a negative threshold": ({"threshold": -0.5}, "threshold must be zero or positive, got -0.5."),
    "a threshold that is not a number": ({"threshold": np.nan}, "threshold must be zero or positive, got nan."),
    "vote_share 0": ({"vote_share": 0.0}, "vote_share must be above 0 and below 1, got 0.0."),
    "vote_share 1": ({"vote_share": 1.0}, "vote_share must be above 0 and below 1, got 1.0."),
    "vote_share not a number": ({"vote_share": np.nan}, "vote_share must be above 0 and below 1, got nan."),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options(options, message):
    with refused(message):
        clair(GOOD, **options)


def test_rank_is_bounded_by_the_smaller_axis():
    with refused("rank must be between 1 and min(out, in) = 3, got 4."):
        clair(GOOD.swapaxes(1, 2), rank=4)


def test_shapes_are_refused_inside_a_trace_too():
    with refused("weights must be from at least 3 clients, for a majority to be defined, got 2."):
        jax.jit(clair)(GOOD[:2])


class Elsewhere(Clients):
    """Clients that hold no dense matrices."""

    @property
    def shape(self):
        return CLIENTS, OUT, IN

    @property
    def dtype(self):
        return jnp.dtype("float32")

    def unused(self, *_):
        raise AssertionError

    times = adjoint_times = inner_products = scatter = project_out = unused


def test_proximal_gradient_says_that_it_needs_dense_clients():
    with refused("ProximalGradient forms the contrasts and needs dense weights: use solver=Factored()."):
        ProximalGradient().solve(Elsewhere(), PENALTY, jnp.ones((CLIENTS, CLIENTS)))


def test_a_list_a_numpy_array_and_an_array_elsewhere_are_accepted():
    """Lists become float64 where the process has it."""
    solve = functools.partial(decompose, penalty=PENALTY, solver=ProximalGradient(accelerate=True))  # compiles fastest
    expected = solve(jnp.asarray(GOOD))
    assert expected.basis.dtype == jnp.float32 and expected.status == Status.converged
    elsewhere = jax.device_put(
        GOOD, jax.devices("cpu")[-1]
    )  # another device where there is one; committed in any case
    assert elsewhere.committed
    for given in (GOOD, np.asfortranarray(GOOD), elsewhere):
        found = solve(given)
        np.testing.assert_array_equal(found.basis, expected.basis)
        assert found.basis.dtype == jnp.float32
    assert solve(elsewhere).basis.devices() == elsewhere.devices()
    found = solve(GOOD.tolist(), pair_weights=np.full((CLIENTS, CLIENTS), 1 / CLIENTS))
    assert found.basis.dtype == jnp.result_type(float)
    np.testing.assert_allclose(found.projector, expected.projector, atol=1e-4)  # float32 against float64
