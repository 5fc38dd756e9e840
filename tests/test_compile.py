"""`compiled`: quick where it is called alone, `jax.jit` everywhere else, and the same numbers. Tricks still pay."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import nothing_compiles
from jax.experimental.compilation_cache import compilation_cache

from clairjax import Penalty, _compile, decompose
from clairjax._compile import compiled, cpu_options
from clairjax.alignment import _factored
from clairjax.experiments import EXPERIMENTS
from clairjax.models import _conv


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
from clairjax import Penalty, _compile, decompose
from clairjax._compile import compiled, cpu_options
from clairjax.alignment import _factored
from clairjax.models import _conv
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


def test_tricks_are_where_the_list_says():
    """A trick that goes leaves the list, too."""
    listed = re.findall(r"`([\w/]+\.py)`(?: `([\w.]+)`)?", _compile.__doc__)
    files = {name: Path(_compile.__file__).parent / name for name, _ in listed if not name.startswith("tests/")}
    missing = [(name, what) for name, what in listed if name in files and what not in files[name].read_text("utf-8")]
    assert len(files) > 10 and not missing


def compile_seconds(function, *args):
    """Processor time, of the quicker of two, of what JAX has not traced before."""
    seconds = []
    for _ in range(2):
        jax.clear_caches()
        lowered = jax.jit(function).lower(*args)
        start = time.process_time()
        lowered.compile(cpu_options())
        seconds.append(time.process_time() - start)
    return min(seconds)


def least_seconds(run):
    run()
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


@pytest.fixture
def no_cache():
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether there is one is asked once a process
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_less_of_llvm_is_still_worth_it(key, no_cache):
    """Of the linear CENTAUR in a sweep; the numbers stay the same to the last digits."""
    experiment = EXPERIMENTS["centaur-linear"]
    cells = experiment.presets["smoke"].cells[:1]
    replicate = experiment.prepared(cells)
    keys = jax.random.split(key, 16)
    lanes = jax.jit(jax.vmap(lambda key: replicate(key, cells[0]))).lower(keys)
    all_of_it = {name: value for name, value in cpu_options().items() if name != "xla_backend_optimization_level"}
    assert all_of_it != cpu_options()

    def compiled_in(options):
        start = time.process_time()
        program = lanes.compile(options)
        return time.process_time() - start, program(keys)

    (less, found), (more, expected) = compiled_in(cpu_options()), compiled_in(all_of_it)
    assert less < 0.5 * more
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9)


@pytest.mark.slow
def test_one_draw_compiles_faster_than_four(key, no_cache):
    one = lambda key: jax.random.normal(key, (4000,)).reshape(4, 1000)
    four = lambda key: [jax.random.normal(each, (1000,)) for each in jax.random.split(key, 4)]
    assert compile_seconds(one, key) < 0.75 * compile_seconds(four, key)


@pytest.mark.slow
def test_a_small_gram_compiles_faster_than_lanczos(rng, monkeypatch, no_cache):
    weights = rng.normal(size=(6, 12, 10)).astype(np.float32)
    solve = lambda weights: decompose(weights, Penalty(1.0, 0.5))
    formed = compile_seconds(solve, weights)
    monkeypatch.setattr(_factored, "SMALL", 0)
    assert formed < 0.85 * compile_seconds(solve, weights)


@pytest.mark.slow
def test_a_block_of_patches_is_faster_in_a_scan_than_a_convolution(rng):
    """A step of gradient descent; 40 times on an idle machine."""
    images, weight = rng.normal(size=(10, 32, 32, 3)), rng.normal(size=(8, 3, 5, 5))
    images, weight, bias = (jnp.asarray(each, jnp.float32) for each in (images, weight, np.zeros(8)))

    def seconds(block):
        slope = jax.grad(lambda weight: jnp.sum(block(images, weight, bias) ** 2))
        run = jax.jit(lambda weight: jax.lax.scan(lambda w, _: (w - slope(w), None), weight, None, length=5)[0])
        return least_seconds(lambda: run(weight).block_until_ready())

    assert seconds(_conv.conv_pool) < seconds(_conv.plain_conv_pool) / 4


@pytest.mark.slow
def test_tiles_are_faster_than_patches(rng, monkeypatch):
    """A step of gradient descent; 2.0 times where FLUTE's second block takes it."""
    given = rng.normal(size=(10, 14, 14, 64)), rng.normal(size=(64, 64, 5, 5)) / 40, np.zeros(64)
    images, weight, bias = (jnp.asarray(each, jnp.float32) for each in given)

    def seconds():
        slope = jax.grad(lambda weight, images: jnp.sum(_conv.conv_pool(images, weight, bias) ** 2), (0, 1))
        step = lambda pair, _: (jax.tree.map(lambda x, g: x - 1e-6 * g, pair, slope(*pair)), None)
        run = jax.jit(lambda weight: jax.lax.scan(step, (weight, images), None, length=5)[0])
        return least_seconds(lambda: jax.block_until_ready(run(weight)))

    tiles = seconds()
    monkeypatch.setattr(_conv, "DEEP", 65)
    assert tiles < seconds() / 1.3
