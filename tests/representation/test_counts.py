"""Clients with unequal numbers of samples: padding is not there, and every method is that of ragged lists."""

import drivers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_numpy as reference
from drivers import COUNTS, FEATURES, OF_SAMPLES, RANK, SAMPLES

from clairjax import PrivatePowerMethod
from clairjax.representation import (
    LinearClients,
    PerturbedMoments,
    alternating_least_squares,
    centaur,
    local_least_squares,
    local_ridge,
    truncated_ridge,
)
from clairjax.representation._centaur import client_updates
from clairjax.representation._initialise import random_start
from clairjax.representation._power_method import moment_images
from clairjax.representation._ridge import EVEN_SHARE
from clairjax.representation._subsets import draw_subsets


CLIENTS = len(COUNTS)
SHORT = [3, 12, 3, 6, 1, 12, 8]  # some have fewer samples than features


def ragged(of):
    """As lists, each client's own samples."""
    own = [slice(count) for count in of.counts]
    inputs = [x[rows] for x, rows in zip(of.inputs, own, strict=True)]
    return reference.Data(inputs, [y[rows] for y, rows in zip(of.targets, own, strict=True)], np.asarray(of.truth))


def spoiled(of, value):
    """The same with this in its padding."""
    beyond = np.arange(SAMPLES) >= np.asarray(of.counts)[:, None]
    inputs = np.where(beyond[..., None], value, of.inputs)
    return of._replace(inputs=inputs, targets=np.where(beyond, value, of.targets))


def problem(counts=COUNTS):
    return spoiled(drivers.samples(0, counts=counts), np.nan)


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_padding_is_not_looked_at(name):
    """To the last bit, whatever it holds; NaN there is no client's fault."""
    of = drivers.samples(0)
    expected = jax.tree.leaves(OF_SAMPLES[name](of))
    for value in (np.nan, -np.inf, 1e300, 7.0):
        found = jax.tree.leaves(OF_SAMPLES[name](spoiled(of, value)))
        for ours, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, same)


def test_padding_is_not_looked_at_inside_a_trace():
    """Where data, counts or both are traced; and NaN among the samples still names its client."""
    of = problem()
    expected = OF_SAMPLES["local_ridge"](of)
    solve = lambda x, counts: local_ridge(x, of.targets, counts=counts)
    for found in (
        jax.jit(solve)(of.inputs, of.counts),
        jax.jit(lambda x: solve(x, of.counts))(of.inputs),
        jax.jit(lambda counts: solve(of.inputs, counts))(of.counts),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    of.inputs[2, of.counts[2] - 1, 0] = np.inf
    with pytest.raises(ValueError, match=r"^inputs must be finite, got NaN or infinite values from client\(s\) 2\.$"):
        solve(of.inputs, of.counts)


def test_what_clients_say_is_of_their_own_samples(rng):
    of, basis = problem(), np.linalg.qr(rng.standard_normal((FEATURES, RANK)))[0]
    x, y, counts = (jnp.asarray(array) for array in of[:3])
    clients = LinearClients.of(x, y, counts)
    zero = jnp.where(jnp.isnan(x), 0, x), jnp.where(jnp.isnan(y), 0, y)  # as the drivers give it on
    in_basis = jnp.asarray(basis)
    images, updates = moment_images(*zero, counts, in_basis), client_updates(clients, clients, in_basis)
    for i, (x, y) in enumerate(zip(*ragged(of)[:2], strict=True)):
        np.testing.assert_allclose(clients.full_gram()[i], x.T @ x / len(y), atol=1e-12)
        np.testing.assert_allclose(clients.square[i], y @ y / len(y), atol=1e-12)
        np.testing.assert_allclose(images[i], (x.T * y**2) @ x @ basis / len(y), atol=1e-10)
        head = np.linalg.lstsq(x @ basis, y)[0]
        gradient = x.T @ np.outer(x @ basis @ head - y, head) / len(y)
        np.testing.assert_allclose(updates[i], gradient, atol=1e-9)


def test_the_perturbed_start_is_of_the_clients_own_samples(key):
    of = drivers.samples(0)
    mean = np.mean([(x.T * y**2) @ x / len(y) for x, y in zip(*ragged(of)[:2], strict=True)], 0)
    expected = np.linalg.eigh(mean)[1][:, -RANK:]
    run = jax.jit(lambda x, y, counts: PerturbedMoments(0.0, 500.0).run(x, y, RANK, key, counts))
    found = run(*(jnp.asarray(array) for array in of[:3]))
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-6)


def test_local_estimators_are_those_of_ragged_lists():
    of = problem()
    data = ragged(of)
    exact = [np.linalg.lstsq(x, y)[0] for x, y in zip(*data[:2], strict=True)]
    np.testing.assert_allclose(OF_SAMPLES["local_least_squares"](of), exact, atol=1e-9)
    basis, expected = OF_SAMPLES["moment_basis"](of), np.linalg.eigh(reference.moment_matrix(data))[1][:, -RANK:]
    np.testing.assert_allclose(basis @ basis.T, expected @ expected.T, atol=1e-9)


@pytest.mark.parametrize("counts", [COUNTS, SHORT])
def test_ridge_is_that_of_ragged_lists(counts):
    """A penalty that is given on each client's scale; one that is found is one prior for all, by true counts."""
    of = problem(counts)
    data = ragged(of)
    plain = reference.ridge(data, 0.1)
    np.testing.assert_allclose(OF_SAMPLES["local_ridge, a penalty"](of), plain, atol=1e-9)
    cut = OF_SAMPLES["truncated_ridge, a penalty"](of).coefficients
    np.testing.assert_allclose(cut, reference.truncated(plain, RANK), atol=1e-9)

    found = OF_SAMPLES["truncated_ridge"](of)
    penalties = float(found.penalty) * np.mean(counts) / counts
    expected = reference.empirical_bayes(data, penalties, EVEN_SHARE * FEATURES)
    np.testing.assert_allclose(found.coefficients, reference.truncated(expected, RANK), atol=1e-7)
    np.testing.assert_allclose(OF_SAMPLES["local_ridge"](of), reference.ridge(data, penalties), atol=1e-9)
    best = reference.gcv(data, penalties)[0]
    for factor in (0.1, 0.5, 0.8, 1.25, 2.0, 10.0):
        assert reference.gcv(data, factor * penalties)[0] > best * (1 - 2e-2 * abs(np.log(factor)) ** 2)


@pytest.mark.parametrize("name", ["flute", "fedrep"])
def test_descents_are_those_of_ragged_lists(name):
    """A client's gradient is the mean over its own samples: every client weighs the same."""
    of = problem()
    data = ragged(of)
    found = OF_SAMPLES[name](of)
    if name == "flute":
        start = random_start(CLIENTS, FEATURES, RANK, 0.1, key=of.key, dtype=jnp.float64)
        basis, heads, errors = reference.flute(data, *map(np.asarray, start), step=0.02, rounds=20)
    else:
        start = np.linalg.eigh(reference.moment_matrix(data))[1][:, -RANK:]
        basis, heads, errors = reference.fedrep(data, start, step=0.02, rounds=20)
    np.testing.assert_allclose(found.coefficients, heads @ basis.T, atol=1e-9)
    np.testing.assert_allclose(found.errors, errors, atol=1e-9)


def test_alternation_weighs_every_sample_the_same():
    of = problem()
    data = ragged(of)
    penalties = float(OF_SAMPLES["truncated_ridge"](of).penalty) * np.mean(COUNTS) / COUNTS
    basis = np.linalg.svd(reference.ridge(data, penalties))[2][:RANK].T
    for _ in range(5):
        basis = reference.basis_of(data, reference.heads_of(data, basis))
    found = OF_SAMPLES["alternating_least_squares"](of)
    np.testing.assert_allclose(found.coefficients, reference.heads_of(data, basis) @ basis.T, atol=1e-8)


@pytest.mark.parametrize("count", [5, 3])
def test_equal_counts_are_data_cut_to_them(count):
    """Also where the cut data have no more samples than features, and take another way through the library."""
    of = problem([count] * CLIENTS)
    data = of.inputs[:, :count], of.targets[:, :count]
    found, cut = OF_SAMPLES["truncated_ridge"](of), truncated_ridge(*data, RANK)
    np.testing.assert_allclose(found.penalty, cut.penalty, rtol=1e-9)
    np.testing.assert_allclose(found.coefficients, cut.coefficients, atol=1e-8)
    np.testing.assert_allclose(OF_SAMPLES["local_ridge"](of), local_ridge(*data), atol=1e-8)


def test_subsets_are_drawn_among_a_clients_own_samples(key):
    counts = jnp.asarray([4, 10, 5], jnp.int32)
    inputs = jnp.broadcast_to(jnp.arange(10.0)[None, :, None], (3, 10, 2))
    draw = lambda key: [y for _, y in draw_subsets(inputs, inputs[:, :, 0], 2, 2, key=key, counts=counts)]
    drawn = np.concatenate(jax.jit(jax.vmap(draw))(jax.random.split(key, 500)), -1)  # [runs, clients, subsets · size]
    for i, count in enumerate(counts.tolist()):
        assert all(len(set(run)) == 4 for run in drawn[:, i])
        share = np.bincount(drawn[:, i].astype(int).ravel(), minlength=10)[:count] / drawn[:, i].size
        assert abs(share.sum() - 1) < 1e-12
        assert (abs(share - 1 / count) < 4.5 * (1 / count / drawn[:, i].size) ** 0.5).all()


KEY = jax.random.key(0)
NOISE = {"key": KEY, "noise_multiplier": 1.0}
DATA = np.ones((3, 8, 2)), np.ones((3, 8))
BAD = {
    "shape": (local_ridge, (), {}, [8, 8], r"counts must be of shape \(clients,\) = \(3,\), got shape \(2,\)"),
    "one": (local_ridge, (), {}, 8, r"counts must be of shape \(clients,\) = \(3,\), got shape \(\)"),
    "ragged": (local_ridge, (), {}, [8, [8], 8], "counts must be one integer for each client, got a list of .*"),
    "floats": (truncated_ridge, (1,), {}, [8.0, 8.0, 8.0], "counts must be integers, got float64"),
    "flags": (truncated_ridge, (1,), {}, [True, True, True], "counts must be integers, got bool"),
    "zero": (local_ridge, (), {}, [8, 0, 8], r"counts must be between 1 and samples = 8, got 0 from client\(s\) 1"),
    "beyond": (
        *(alternating_least_squares, (1,), {}, np.array([9, 8, -1])),
        r"counts must be between 1 and samples = 8, got 9, -1 from client\(s\) 0, 2",
    ),
    "features": (
        *(local_least_squares, (), {}, [8, 8, 1]),
        r"counts must be between features = 2 and samples = 8, got 1 from client\(s\) 2",
    ),
    "heads": (
        *(centaur, (2,), NOISE, [1, 8, 8]),
        r"counts must be between rank = 2 and samples = 8, got 1 from client\(s\) 0",
    ),
    "subsets": (
        *(centaur, (1,), NOISE | {"batch_size": 4}, [8, 7, 8]),
        r"counts must be between 2 batch_size = 8 and samples = 8, got 7 from client\(s\) 1",
    ),
    "of the start": (
        *(centaur, (1,), NOISE | {"init": PrivatePowerMethod(1, 1.0, 1.0, batch_size=6)}, [8, 5, 8]),
        r"counts must be between batch_size = 6 and samples = 8, got 5 from client\(s\) 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_counts_are_named(case):
    function, arguments, options, counts, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}\\.$"):
        function(*DATA, *arguments, **options, counts=counts)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_counts_of_any_integers_are_the_same(dtype):
    """Traced ones as well; what is out of range in 64 bits is not in range in 32."""
    of = problem()
    solve = lambda counts: local_least_squares(of.inputs, of.targets, counts=counts)
    expected, counts = OF_SAMPLES["local_least_squares"](of), of.counts.astype(dtype)
    np.testing.assert_array_equal(solve(counts), expected)
    np.testing.assert_allclose(jax.jit(solve)(counts), expected, atol=1e-12)
    if dtype.endswith("64"):
        assert np.isnan(jax.jit(solve)(counts + np.asarray([2**32] + [0] * 6, dtype))[0]).all()
