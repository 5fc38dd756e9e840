"""What one client can do to a private release, whatever the size of the numbers that it holds."""

import itertools

import jax
import numpy as np
import pytest

from clairjax.data import SharedSubspace
from clairjax.representation import centaur
from clairjax.representation._perturbed import _perturbed_system


CLIENTS, SAMPLES, FEATURES, RANK = 9, 12, 5, 2
STEP, CLIP = 0.3, 0.1


def one_round(inputs, targets, **options):
    options = {"rounds": 1, "noise_multiplier": 0.0, "clip_norm": CLIP, "step_size": STEP, "init": START} | options
    return centaur(inputs, targets, RANK, key=jax.random.key(0), **options)


START = np.linalg.qr(np.random.default_rng(0).standard_normal((FEATURES, RANK)))[0].astype(np.float32)


@pytest.fixture
def data(key):
    problem = SharedSubspace(CLIENTS, SAMPLES, FEATURES, RANK, noise=0.1).generate(key=key, dtype="float32")
    return np.array(problem.inputs), np.array(problem.targets)


def test_finite_data_of_any_size_move_the_basis_by_at_most_two_clip_norms(data):
    inputs, targets = data
    before = np.asarray(one_round(inputs, targets).basis)
    sizes = -30, 0, 10, *np.arange(18.4, 19.6, 0.1), 25, 37  # updates pass the largest number near 1e19
    for of_inputs, of_targets in (*itertools.product((-5, 0), sizes), (-30, 0), (-30, 19), (15, 0), (15, 19)):
        x, y = inputs.copy(), targets.copy()
        x[3] *= np.float32(10.0**of_inputs)
        y[3] *= np.float32(10.0**of_targets)
        moved = np.linalg.norm(np.asarray(one_round(x, y).basis) - before)
        assert moved <= STEP * 2 * CLIP / CLIENTS * 1.1, (of_inputs, of_targets)


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e24])
def test_who_is_clipped_is_counted_at_any_size(data, size):
    """Targets times c are updates times c²."""
    inputs, targets = data
    targets = targets * np.float32(size**0.5)
    assert one_round(inputs, targets, clip_norm=1e-3 * size, step_size=0.1 / size).clipped == 1
    assert one_round(inputs, targets, clip_norm=1e3 * size, step_size=0.1 / size).clipped == 0


def test_a_clients_normal_equations_are_clipped_at_any_size(rng, key):
    """w wᵀ ⊗ G and b wᵀ of one client, in float64, against the release without noise, in float32."""
    clips = 2.0, 0.5
    release = jax.jit(lambda head, gram, moment: _perturbed_system(head, gram, moment, clips, 0.0, key))
    for of_head, of_gram in itertools.product((-35, -22, -11, 0, 11, 22, 35), (-36, -20, 0, 20, 30, 36)):
        head = (10.0**of_head * rng.standard_normal((1, RANK))).astype(np.float32)
        root = rng.standard_normal((FEATURES, FEATURES))
        gram = (10.0**of_gram * root @ root.T).astype(np.float32)[None]
        (found, *_), clipped = release(head, gram, np.zeros((1, FEATURES), np.float32))
        right = np.einsum("kl,de->dkel", np.outer(head, head.astype(np.float64)), gram[0]).reshape(found.shape)
        length = np.linalg.norm(right)
        right *= min(1, clips[0] / length)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-36 + 1e-6 * np.abs(right).max())
        assert float(clipped) == (length > clips[0])
