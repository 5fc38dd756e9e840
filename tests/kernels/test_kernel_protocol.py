"""What every kernel promises: the data's dtype, vmap equal to a loop, one trace, all finite at zero."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax import kernels


# Name: (function of arrays alone, shapes of the arrays). A shape of () is a threshold, a bound or a radius.
CASES = {
    "gram": (kernels.gram, [(6, 4)]),
    "svt tall": (kernels.svt, [(6, 4), ()]),
    "svt wide": (kernels.svt, [(3, 5), ()]),
    "right_basis": (lambda m: kernels.right_basis(kernels.gram(m), 2), [(6, 4)]),
    "spectral_norm": (
        lambda m: kernels.spectral_norm(lambda v: m.T @ (m @ v), m.shape[1], dtype=m.dtype, steps=4),
        [(6, 4)],
    ),
    "block_norms": (kernels.block_norms, [(5, 3, 2)]),
    "block_soft_threshold": (kernels.block_soft_threshold, [(5, 3, 2), ()]),
    "block_soft_threshold, one a block": (kernels.block_soft_threshold, [(5, 3, 2), (5,)]),
    "orthonormalize": (kernels.orthonormalize, [(6, 3)]),
    "clip_by_norm": (kernels.clip_by_norm, [(6,), ()]),
    "clip_by_norm, tree": (lambda a, b, c: kernels.clip_by_norm({"a": a, "b": [b]}, c), [(2, 3), (4,), ()]),
    "normalize": (kernels.normalize, [(6,)]),
    "gaussian_mechanism": (
        lambda v, c, s: kernels.gaussian_mechanism(v, c, s, normaliser=7.0, key=jax.random.key(3)),
        [(5, 2, 3), (), ()],
    ),
    "grid_gaussian_mechanism": (
        lambda v, c, s: kernels.grid_gaussian_mechanism(v, c, s, normaliser=7.0, key=jax.random.key(3)),
        [(5, 2, 3), (), ()],
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def draw(rng, shapes, dtype):
    normal = [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]
    return [x if x.ndim > 1 else jnp.abs(x) + jnp.asarray(0.1, dtype) for x in normal]


def derivatives_of(function, arguments):
    """Value, forward derivative along ones, and gradient of a sum."""
    total = lambda xs: sum(jnp.sum(leaf**2 + leaf) for leaf in jax.tree.leaves(function(*xs)))
    ones = [jnp.ones_like(x) for x in arguments]
    return jax.jvp(lambda xs: function(*xs), (arguments,), (ones,)), jax.value_and_grad(total)(arguments)


def test_keeps_the_dtype_also_beside_python_numbers(case, rng, dtype):
    function, shapes = case
    arguments = draw(rng, shapes, dtype)
    numbers = [x if x.ndim else float(x) for x in arguments]
    shaped = jax.eval_shape(lambda xs: (function(*numbers), derivatives_of(function, xs)), arguments)
    chex.assert_type(jax.tree.leaves(shaped), dtype)


def test_traces_once_and_vmap_is_a_loop(case, rng):
    function, shapes = case
    lanes = [draw(rng, shapes, jnp.float32) for _ in range(3)]
    traces = []
    compiled = jax.jit(lambda *xs: (traces.append(1), function(*xs))[1])
    looped = jax.tree.map(lambda *xs: np.stack(xs), *[compiled(*lane) for lane in lanes])
    assert len(traces) == 1
    stacked = [jnp.asarray(np.stack(xs)) for xs in zip(*lanes, strict=True)]
    chex.assert_trees_all_close(jax.jit(jax.vmap(function))(*stacked), looped, rtol=2e-5, atol=2e-5)


def test_value_and_derivatives_are_finite_at_zero(case, rng):
    function, shapes = case
    everything = jax.jit(lambda xs: derivatives_of(function, xs))
    generic = draw(rng, shapes, jnp.float32)
    for is_zero in (lambda x: x.ndim > 0, lambda x: x.ndim == 0, lambda x: True):
        chex.assert_tree_all_finite(everything([jnp.asarray(0 * np.asarray(x)) if is_zero(x) else x for x in generic]))


def test_names_itself_in_the_compiled_code(rng):
    for name, (function, shapes) in CASES.items():
        arguments = draw(rng, shapes, jnp.float32)
        text = jax.jit(function).lower(*arguments).as_text(debug_info=True)
        assert "clairjax." + name.split()[0].strip(",") in text, name


def test_the_door_is_covered():
    public = {name for name, value in vars(kernels).items() if inspect.isfunction(value)}
    assert public == {name.split()[0].strip(",") for name in CASES}


def test_32_bit_switch(dtype):
    widest = np.float64 if jax.config.jax_enable_x64 else np.float32
    assert jnp.asarray(np.zeros(1)).dtype == widest
    assert dtype in (np.float32, widest)
