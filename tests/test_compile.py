"""`compiled`: quick where it is called alone, `jax.jit` everywhere else, and the same numbers."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import nothing_compiles

from clairjax._compile import compiled


def cubes(x, power):
    return jnp.cumsum(x**power)


CUBES = compiled(cubes, static_argnames=("power",))
DATA = np.arange(1.0, 5.0)


def test_it_is_one_program_wherever_it_is_called():
    expected = np.cumsum(DATA**3)
    call = lambda x: CUBES(x, power=3)
    for found in (call(DATA), jax.jit(call)(DATA), jax.jit(lambda: call(DATA))(), jax.vmap(call)(DATA[None])[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(jax.lax.map(call, DATA[None])[0], expected, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: call(x)[-1])(jnp.asarray(DATA)), 3 * DATA**2, rtol=1e-6)
    with nothing_compiles():
        call(DATA + 1)


PROBE = """
import jax
def outer(x):
    from clairjax._compile import compiled  # imported while something is traced
    return compiled(jax.numpy.sin)(x)
first = jax.jit(outer)(1.0)
from clairjax._compile import compiled
assert float(compiled(jax.numpy.sin)(1.0)) == float(first)
"""


def test_it_may_be_imported_while_something_is_traced():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


FIRST_CALL = """
import os, numpy as np, jax
from clairjax import _compile
if QUICK is False:
    _compile.cpu_options = lambda: None
import clairjax as cj
weights = np.random.default_rng(0).normal(size=(10, 40, 30))
cj.alignment
before = sum(os.times()[:2])
jax.block_until_ready(cj.clair(weights))
print(sum(os.times()[:2]) - before)
"""


@pytest.mark.slow
def test_the_options_are_still_worth_it():
    """Fails once `jax.jit` alone compiles as quickly: then they go. Processor time, without a cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}

    def seconds(quick):
        code = FIRST_CALL.replace("QUICK", str(quick))
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert min(seconds(True) for _ in range(2)) < 0.8 * min(seconds(False) for _ in range(2))
