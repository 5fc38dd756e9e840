"""Mechanisms with one fault each: the default audit refutes all of them, and passes what has none.

The plainest canary sends the same entry in every round, and is blind to noise that is missing or shared elsewhere.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

from clairjax import privacy
from clairjax.kernels import clip_by_norm
from clairjax.privacy import GaussianCanary


pytestmark = pytest.mark.optimised

DELTA, EPSILON, ROUNDS = 1e-5, 2.0, 10
ADD, REPLACE = "add-or-remove-one", "replace-one"
both = pytest.mark.parametrize("adjacency", [ADD, REPLACE])

norms = lambda values: jnp.linalg.norm(values, axis=1, keepdims=True)
scaled = lambda values, clip, to: values * jnp.minimum(1, clip / jnp.maximum(to, 1e-30))
add_up = lambda clipped: jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), clipped)
total = lambda values, clip: add_up(jax.vmap(clip_by_norm, (0, None))(values, clip))
halves = lambda values, clip: jnp.concatenate([total(values[:, :2], clip), total(values[:, 2:], clip)])
senders = lambda values: jnp.maximum(jnp.sum(jnp.any(values != 0, axis=1).astype(values.dtype)), 1)
in_all = lambda number: jnp.broadcast_to(number, 4)

# Each returns a sum over four users of four entries and noise for it, from the values, the clip norm ζ and normal
# numbers z; what is correct is `total(v, c), c * z`.
CORRECT = {
    "as it should be": lambda v, c, z: (total(v, c), c * z),
    "another clip": lambda v, c, z: (jnp.sum(scaled(v, c, norms(v)), axis=0), c * z),
    "the same in another basis": lambda v, c, z: (total(v, c), c * jnp.flip(z) * jnp.asarray([1, -1, 1, -1], z.dtype)),
}
NOISE = {
    "half of it": lambda z: z / 2,
    "over the root of the features": lambda z: z / z.shape[0] ** 0.5,
    "a number for all entries": lambda z: in_all(z[0]),
    "a number for all entries, with signs": lambda z: z[0] * jnp.asarray([1, 1, 1, -1], z.dtype),
    "in the first entry alone": lambda z: z.at[1:].set(0),
    "none in the last entry": lambda z: z.at[-1].set(0),
    "none in the third entry": lambda z: z.at[2].set(0),
    "none in the last two": lambda z: z.at[2:].set(0),
    "half of it in the third entry": lambda z: z.at[2].multiply(0.5),
    "a number for two entries": lambda z: jnp.repeat(z[:2], 2),
    "the same in both halves": lambda z: jnp.tile(z[:2], 2),
    "mostly shared": lambda z: 0.3**0.5 * z + 0.7**0.5 * jnp.roll(z, 1)[0],
    "of mean zero": lambda z: z - z.mean(),
    "of rank one": lambda z: jnp.outer(z[:2], z[2:]).reshape(-1),
    "signs alone": lambda z: jnp.sign(z),
    "uniform": lambda z: 3**0.5 * jax.lax.erf(z / 2**0.5),
    "cut off": lambda z: jnp.clip(z, -2, 2),
    "one of 256": lambda z: jnp.round(16 * z) / 16,
    "none": jnp.zeros_like,
}
FAULTS = {
    **{f"noise: {name}": lambda v, c, z, of=of: (total(v, c), c * of(z)) for name, of in NOISE.items()},
    "noise: without the clip norm": lambda v, c, z: (total(v, c), z),
    "noise: with its square": lambda v, c, z: (total(v, c), c * c * z),
    "noise: as large as the sum": lambda v, c, z: (total(v, c), jnp.linalg.norm(total(v, c)) * z),
    "noise: only where somebody sent": lambda v, c, z: (total(v, c), jnp.where(jnp.any(v != 0), c * z, 0)),
    "noise: before the clip": lambda v, c, z: (total(v + c * z[None] / 2, c), 0 * z),
    "clip: none": lambda v, c, z: (jnp.sum(v, axis=0), c * z),
    "clip: twice as long": lambda v, c, z: (total(v, 2 * c), c * z),
    "clip: by entry": lambda v, c, z: (jnp.sum(jnp.clip(v, -c, c), axis=0), c * z),
    "clip: by the largest entry": lambda v, c, z: (jnp.sum(scaled(v, c, jnp.abs(v).max(1, keepdims=True)), 0), c * z),
    "clip: by half": lambda v, c, z: (halves(v, c), c * z),
    "clip: one factor for all": lambda v, c, z: (jnp.sum(scaled(v, c, norms(v).max()), axis=0), c * z),
    "clip: of the mean": lambda v, c, z: (4 * clip_by_norm(jnp.mean(v, axis=0), c), c * z),
}
ONE_MORE = {  # faults where a user is one more or fewer
    "clip: of the sum": lambda v, c, z: (clip_by_norm(jnp.sum(v, axis=0), c), c * z),
    "by the number that sent": lambda v, c, z: (total(v, c) * 4 / senders(v), c * z * 4 / senders(v)),
}
ALL = CORRECT | FAULTS | ONE_MORE
RUNS = {"clip: by half": 12_000}  # √2 times as far, for one canary alone


@functools.cache
def noise_for(adjacency):
    return privacy.noise_multiplier(EPSILON, ROUNDS, delta=DELTA, adjacency=adjacency)


def one_of_all(values, clip_norm, coded, *, normaliser, key):
    """One compiled program for all: which of them, and for which adjacency, is coded into the noise multiplier."""
    number, second = jnp.divmod(coded.astype(int), 2)
    sigma = jnp.where(second, noise_for(REPLACE), noise_for(ADD)).astype(values.dtype)
    normal = jax.random.normal(key, (4,), values.dtype)
    whole, noise = jax.lax.switch(number, list(ALL.values()), values, clip_norm, normal)
    return (whole + sigma * noise) / normaliser


def audit(canary, key, adjacency, runs=4000):
    return privacy.audit(canary, runs=runs, delta=DELTA, key=key, adjacency=adjacency, chunk=4000)


def audit_of(name, key, adjacency, runs=4000):
    coded = 2.0 * list(ALL).index(name) + (adjacency == REPLACE)
    return audit(GaussianCanary(coded, ROUNDS, adjacency, mechanism=one_of_all), key, adjacency, runs)


def refuted(found):
    return max(found.epsilon, found.gaussian_epsilon) > EPSILON


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, key):
    assert refuted(audit_of(name, key, REPLACE, RUNS.get(name, 4000)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_whatever_the_key(name, key):
    for adjacency, one in itertools.product((ADD, REPLACE), jax.random.split(key, 10)):
        assert refuted(audit_of(name, one, adjacency, RUNS.get(name, 4000)))


@pytest.mark.parametrize("name", ONE_MORE)
def test_a_fault_of_one_user_more_or_fewer_is_found_there(name, key):
    assert refuted(audit_of(name, key, ADD))


@both
@pytest.mark.parametrize("name", CORRECT)
def test_what_has_no_fault_passes(name, adjacency, key):
    assert not any(refuted(audit_of(name, one, adjacency)) for one in jax.random.split(key, 4))


def test_a_sum_that_is_clipped_is_no_fault_where_users_are_exchanged(key):
    assert not refuted(audit_of("clip: of the sum", key, REPLACE))


LOOPS = {  # whose key a round gets; the noise of each round is right by itself
    "the first one's": lambda rounds: 0 * rounds,
    "every second one's twice": lambda rounds: rounds - rounds % 2,
    "that of two rounds before": lambda rounds: rounds % 2,
    "the first one's in every other round": lambda rounds: jnp.where(rounds % 2 == 1, rounds, 0),
}


PARAMETERS = [pytest.param(name, marks=[] if "second" in name else pytest.mark.slow) for name in LOOPS]


@pytest.mark.parametrize("name", PARAMETERS)
def test_noise_that_rounds_share_is_found(name, key):
    def loop(step, updates, key):
        return jax.vmap(step)(updates, jax.random.split(key, ROUNDS)[LOOPS[name](jnp.arange(ROUNDS))])

    assert refuted(audit(GaussianCanary(noise_for(REPLACE), ROUNDS, loop=loop), key, REPLACE))


TREES = {
    "as it should be": lambda sums, alone, z, w: (sums[0] + z, sums[1] + w),
    "the same noise in leaves of one shape": lambda sums, alone, z, w: (sums[0] + z, sums[1] + z),
    "a leaf without noise": lambda sums, alone, z, w: (sums[0] + z, sums[1]),
    "leaves that are clipped alone": lambda sums, alone, z, w: (alone[0] + z, alone[1] + w),
}


def one_of_trees(values, clip_norm, coded, *, normaliser, key):
    """As `one_of_all`, of updates that are two 2 × 1 matrices."""
    sums, alone = total(values, clip_norm), tuple(total(leaf, clip_norm) for leaf in values)
    noises = noise_for(REPLACE) * clip_norm * jax.random.normal(key, (2, 2, 1), clip_norm.dtype)
    released = jax.lax.switch(coded.astype(int), list(TREES.values()), sums, alone, *noises)
    return [leaf / normaliser for leaf in released]


@pytest.mark.parametrize("name", TREES)
def test_trees(name, key):
    canary = GaussianCanary(float(list(TREES).index(name)), ROUNDS, features=((2, 1), (2, 1)), mechanism=one_of_trees)
    assert refuted(audit(canary, key, REPLACE, 12_000)) == (name != "as it should be")


def test_the_mechanism_of_the_library_takes_the_same_tree(key):
    canary = GaussianCanary(0.0, 3, features=((2, 1), (2, 1)))
    assert float(canary(key, True)) == pytest.approx(3) and float(canary(key, False)) == pytest.approx(-3)
