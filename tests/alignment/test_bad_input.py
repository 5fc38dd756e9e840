"""What is refused, each with its whole message: the argument, what it must be, what came."""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import ClairResult, Factored, Penalty, ProximalGradient, Status, clair, decompose
from clairjax.alignment import Multipliers


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


SOLVERS = {
    "no columns": (lambda: Factored(max_rank=0), "max_rank must be an integer of at least 1, got 0."),
    "no steps": (lambda: Factored(max_steps=0), "max_steps must be an integer of at least 1, got 0."),
    "fewer than none": (lambda: ProximalGradient(max_steps=-3), "max_steps must be an integer of at least 1, got -3."),
    "no steps without noise": (
        lambda: Multipliers(max_steps=0),
        "max_steps must be an integer of at least 1, got 0.",
    ),
    "a negative tolerance": (
        lambda: decompose(GOOD, PENALTY, solver=Factored(rtol=-1e-3)),
        "solver.rtol must be at least 0 and finite, got -0.001.",
    ),
    "a tolerance that is not a number": (
        lambda: clair(GOOD, solver=Factored(rtol=np.nan)),
        "solver.rtol must be at least 0 and finite, got nan.",
    ),
    "a negative tolerance without noise": (
        lambda: decompose(GOOD, PENALTY, solver=Multipliers(rtol=-1e-3)),
        "solver.rtol must be at least 0 and finite, got -0.001.",
    ),
    "no step": (
        lambda: decompose(GOOD, PENALTY, solver=ProximalGradient(step=0.0)),
        "solver.step must be positive and finite, got 0.0.",
    ),
}


@pytest.mark.parametrize(("call", "message"), SOLVERS.values(), ids=SOLVERS)
def test_solvers(call, message):
    with refused(message):
        call()


KINDS_OF_ARGUMENT = """
import numpy as np
from clairjax import Factored, Penalty, ProximalGradient, clair, decompose
weights = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
for call in (
    lambda: decompose(weights, (0.3, 0.1)),
    lambda: clair(weights, penalty=(0.3, 0.1)),
    lambda: clair(weights, rank=2.0),
    lambda: clair(weights, rank=True),
    lambda: clair(weights, solver="factored"),
    lambda: decompose(weights, Penalty(0.3, 0.1), solver=Factored),
    lambda: Factored(max_rank=2.0),
    lambda: Factored(max_steps=1e3),
    lambda: ProximalGradient(max_steps=True),
    lambda: decompose(weights, Penalty("0.3", 0.1)),
    lambda: decompose(weights, Penalty(None, 0.1)),
    lambda: clair(weights, solver=Factored(rtol="small")),
    lambda: clair(weights, threshold="1"),
    lambda: clair(weights, threshold=np.ones(2)),
    lambda: clair(weights, vote_share=True),
    lambda: clair(weights, vote_share=1j),
    lambda: clair(weights, vote_share=[[0.5], [0.5, 0.5]]),
    lambda: clair(weights, refit=1),
    lambda: clair(weights, shrink="no"),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""


def test_kinds_of_argument():
    """In a process without the type checks of these tests, which would come first."""
    done = subprocess.run([sys.executable, "-c", KINDS_OF_ARGUMENT], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "penalty must be a Penalty(low_rank, sparse), got (0.3, 0.1).",
        "penalty must be a Penalty(low_rank, sparse), got (0.3, 0.1).",
        "rank must be an integer, static inside a trace, got 2.0.",
        "rank must be an integer, static inside a trace, got True.",
        "solver must be a Factored, ProximalGradient or Multipliers, got 'factored'.",
        "solver must be a Factored, ProximalGradient or Multipliers, got "
        "<class 'clairjax.alignment._factored.Factored'>.",
        "max_rank must be an integer of at least 1, got 2.0.",
        "max_steps must be an integer of at least 1, got 1000.0.",
        "max_steps must be an integer of at least 1, got True.",
        "penalty.low_rank must be one number, got '0.3'.",
        "penalty.low_rank must be one number, got None.",
        "solver.rtol must be one number, got 'small'.",
        "threshold must be one number, got '1'.",
        "threshold must be one number, got shape (2,).",
        "vote_share must be one number, got True.",
        "vote_share must be one number, got 1j.",
        "vote_share must be one number, got [[0.5], [0.5, 0.5]].",
        "refit must be True or False, got 1.",
        "shrink must be True or False, got 'no'.",
    ], done.stderr


GOOD_ARGUMENTS = {
    "low_rank": np.float64(0.3),
    "sparse": np.float64(0.1),
    "pair_weights": np.full((CLIENTS, CLIENTS), 0.2),
    "threshold": np.float64(1e3),
    "vote_share": np.float64(0.5),
    "rtol": np.float64(1e-3),
}
# Each as bad as the guards outside a trace refuse it.
BAD_ARGUMENTS = [
    *(("low_rank", value) for value in (-0.3, 0.0, np.nan, np.inf)),
    *(("sparse", value) for value in (-0.1, 0.0, np.nan, np.inf)),
    *(("pair_weights", table(value)) for value in (-2.0, 0.0, np.nan, np.inf)),
    ("pair_weights", 1 + np.triu(np.ones((CLIENTS, CLIENTS)))),
    *(("threshold", value) for value in (-1.0, np.nan)),
    *(("vote_share", value) for value in (-0.5, 0.0, 1.0, 2.0, np.nan)),
    *(("rtol", value) for value in (-1e-3, np.nan)),
]


def run_clair(low_rank, sparse, pair_weights, threshold, vote_share, rtol):
    solver = Factored(rtol=rtol)
    options = {"pair_weights": pair_weights, "threshold": threshold, "vote_share": vote_share}
    return clair(jnp.asarray(GOOD), penalty=Penalty(low_rank, sparse), solver=solver, refit=False, **options)


def run_decompose(low_rank, sparse, pair_weights, threshold, vote_share, rtol):
    solver = ProximalGradient(rtol=rtol, accelerate=True)
    return decompose(jnp.asarray(GOOD), Penalty(low_rank, sparse), pair_weights=pair_weights, solver=solver)


def run_noiseless(low_rank, sparse, pair_weights, threshold, vote_share, rtol):
    return decompose(jnp.asarray(GOOD), Penalty(low_rank, sparse), solver=Multipliers(rtol=rtol))


TAKES = {
    jax.jit(run_clair): set(GOOD_ARGUMENTS),
    jax.jit(run_decompose): {"low_rank", "sparse", "pair_weights", "rtol"},
    jax.jit(run_noiseless): {"low_rank", "sparse", "rtol"},
}
every_driver = pytest.mark.parametrize("run", TAKES, ids=["clair", "decompose", "Multipliers"])


@every_driver
def test_inside_a_trace_the_status_tells(run):
    """And nobody is a member, nothing is refined; good values of the same arguments have another status."""
    assert run(**GOOD_ARGUMENTS).status == Status.converged
    for name, value in BAD_ARGUMENTS:
        if name in TAKES[run]:
            found = run(**(GOOD_ARGUMENTS | {name: np.asarray(value, np.float64)}))  # of one type: one trace
            assert found.status == Status.invalid_argument, (name, value)
            if isinstance(found, ClairResult):
                assert not found.members.any() and found.decomposition.status == Status.invalid_argument
                np.testing.assert_array_equal(found.refined, GOOD)


def test_each_lane_of_a_batch_has_its_own_status():
    shares = jnp.asarray([0.5, np.nan, 0.3, 1.0])
    found = jax.vmap(lambda share: clair(jnp.asarray(GOOD), vote_share=share, threshold=1e3))(shares)
    assert (found.status == Status.invalid_argument).tolist() == [False, True, False, True]
    assert found.members.all(1).tolist() == [True, False, True, False]


@every_driver
def test_numpy_numbers_take_the_dtype_of_the_data(run):
    """GOOD is float32 and the numbers are float64: no promotion, the same result as from Python numbers."""
    python = {name: value.tolist() for name, value in GOOD_ARGUMENTS.items()}
    found, expected = run.__wrapped__(**GOOD_ARGUMENTS), run.__wrapped__(**python)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype != jnp.float64
        np.testing.assert_array_equal(one, other)


def test_rank_is_bounded_by_the_smaller_axis():
    with refused("rank must be between 1 and min(out, in) = 3, got 4."):
        clair(GOOD.swapaxes(1, 2), rank=4)


@pytest.mark.parametrize("shared", ["both", ""])
def test_rows_or_columns_are_shared(shared):
    with refused(f'shared must be "rows" or "columns", got {shared!r}.'):
        clair(GOOD, shared=shared)


def test_shapes_are_refused_inside_a_trace_too():
    with refused("weights must be from at least 3 clients, for a majority to be defined, got 2."):
        jax.jit(clair)(GOOD[:2])


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
