"""Settings that must precede every JAX array, and the fixtures all rooms share."""

import functools
import hashlib
import os
from pathlib import Path


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
WIDE = os.environ.get("CLAIRJAX_TEST_X64", "1") != "0"
# Most of the suite is compilation. Without optimisation it takes half as long, in this process and those it starts.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis  # noqa: E402
import jax  # noqa: E402


if jax.__version_info__[:2] == (0, 10):  # XLA ends a process whose flags it does not know
    # It takes a fifth less without this: see clairjax/_compile.py.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402


STRICT = {"jax_numpy_dtype_promotion": "strict", "jax_numpy_rank_promotion": "raise"}
jax.config.update("jax_enable_x64", WIDE)
for _name, _value in STRICT.items():
    jax.config.update(_name, _value)

hypothesis.settings.register_profile(
    "clairjax",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=25,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.differing_executors,
    ],
)
hypothesis.settings.load_profile("clairjax")


@pytest.fixture(autouse=True)
def _compiled_as_it_pays(request, monkeypatch):
    """Slow tests, and those marked `optimised`, run for longer than they compile; so do the processes they start."""
    before = jax.config.read("jax_disable_most_optimizations")
    if any(request.node.iter_markers("slow")) or any(request.node.iter_markers("optimised")):
        jax.config.update("jax_disable_most_optimizations", False)
        monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", autouse=True)
def _few_programs():
    """A compiled program holds memory maps; Linux grants a process 65530, and past them the compiler crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(params=["float32", "float64"] if WIDE else ["float32"])
def dtype(request):
    """Both dtypes in an x64 process; float32 alone where CLAIRJAX_TEST_X64=0 takes x64 away."""
    return jnp.dtype(request.param)


def _seed(request):
    """Depends on the test's name and on nothing else."""
    return int.from_bytes(hashlib.sha256(request.node.name.encode()).digest()[:4], "big") >> 1


@pytest.fixture
def key(request):
    """For functions that take a key."""
    return jax.random.key(_seed(request))


@pytest.fixture
def rng(request):
    """For data: unlike `jax.random`, NumPy compiles nothing."""
    return np.random.default_rng(_seed(request))


@functools.partial(jax.jit, static_argnums=0)
def _derivatives(function, arguments, direction, step):
    flat, restore = ravel_pytree(arguments)
    flat_function = lambda x: ravel_pytree(function(*restore(x)))[0]
    direction = ravel_pytree(direction)[0]
    differences = (flat_function(flat + step * direction) - flat_function(flat - step * direction)) / (2 * step)
    _, forward = jax.jvp(flat_function, (flat,), (direction,))
    weights = jnp.cos(jnp.arange(forward.size, dtype=forward.dtype))
    (reverse,) = jax.vjp(flat_function, flat)[1](weights)
    return differences, forward, weights @ forward, reverse @ direction


@pytest.fixture
def check_derivative(rng):
    """Compares forward and reverse derivatives along a random direction with central differences."""
    if not WIDE:
        pytest.skip("finite differences need float64")

    def check(function, *arguments, step=1e-6, tolerance=1e-6):
        direction = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(jnp.shape(x))), arguments)
        differences, forward, forward_sum, reverse_sum = _derivatives(function, arguments, direction, step)
        assert differences.dtype == jnp.float64
        scale = 1 + np.abs(differences).max()
        np.testing.assert_allclose(forward, differences, rtol=0, atol=tolerance * scale)
        np.testing.assert_allclose(reverse_sum, forward_sum, rtol=1e-9, atol=1e-9 * scale)

    return check


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Eight clients' adapters, the fourth in other rows, refined and saved once."""
    pytest.importorskip("safetensors")
    from folders import write_all

    import clairjax as cj

    root = tmp_path_factory.mktemp("adapters")
    found = cj.adapters.refine(cj.adapters.load(write_all(root / "in")))
    return root, found, cj.adapters.save(found, root / "out")
