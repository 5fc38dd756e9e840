"""How drivers are compiled, and the tricks for compilers and CPUs: what each gains on jaxlib 0.10.2.

General helpers are below; the others are part of what they speed up. A trick goes once plain JAX is as good: the slow
tests of `tests/test_compile.py` then fail.

- `alignment/_elect.py` `again`: votes in a scan of fixed length. A `while_loop` over a batch never ends on a CPU.
- `alignment/_elect.py` `nobody`: a loop from nothing, so that the vote is compiled once and not twice.
- `alignment/_factored.py` `SMALL`: small Grams are formed. `decompose` compiles in 0.9 s, with Lanczos in 1.6: tested.
- `alignment/_factored.py` `initial_factor`: a constant of the trace. A draw costs 0.3 s of the 2.1 s of `clair`.
- `alignment/_arguments.py` `_number`: converted on the host. Each operation outside a trace is a program.
- `alignment/_evidence.py` `evidence`: NumPy in, NumPy out. Layers have many shapes, each a program.
- `_validate.py` `_finite`: looked at on the host, for the same reason.
- `data/_linear.py` `draws`, `representation/_initialise.py` `draw`: one draw, cut up. Four draws compile in 0.6 s,
  one in 0.2 s: tested. So it is in `data/_shared.py`, `data/_copying.py` and `federated/_private.py`.
- `federated/_aligned.py` `lax.map`, `federated/_rounds.py` `_both`: a loop over equal parts, compiled once.
- `federated/_rounds.py` `lanes_of_backend`, `federated/_local.py` `chunk_size`: few clients and samples at once, for
  the caches of a CPU.
- `models/_conv.py` `conv_pool`: patches and one product. A step takes 0.5 ms in a scan. XLA's convolution takes 20 ms
  there, 2.5 ms outside: tested.
- `models/_conv.py` `_by_tiles`: products of tiles where there are 8 channels. A block of 64 channels takes 0.49 of the
  time of patches: tested.
- `models/_transformer.py` `one_hot`: a product, for its gradient. A gather takes 6 times as long at 20 words
  in a scan; at 256 words it is as good.
- `sweep/_plan.py` `lanes_in_turn`: lanes of large programs in turn. `Factored` of 20 × 50 × 50 takes 3.6 ms a lane,
  in a batch of 32 it takes 8.0 ms.
- `_factorisations.py` `one_matrix_at_a_time`: side by side or on several devices, batched ones can wait for ever.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import jax
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array


Options = dict[str, bool | str]
Given = ParamSpec("Given")
Result = TypeVar("Result")


def cpu_options() -> Options | None:
    """Options for programs of many small loops on a CPU; None where this jaxlib does not know them.

    Processor time to compile, with all of LLVM's optimisation and with less: the linear CENTAUR in a sweep 10.4 s and
    2.0 s, a round of CENTAUR's network 4.9 s and 2.6 s, `clair` of 10 × 40 × 30 2.1 s and 1.8 s. Programs run as fast,
    but for the networks' rounds, which take 1 to 3 % longer. XLA's fusion emitters cost that `clair` 1.6 s more.
    """
    options = wanted_options()
    return options if _known(tuple(options.items())) else None


def wanted_options() -> Options:
    """What `cpu_options` asks for, whether this jaxlib knows it or not. Nothing is compiled."""
    options: Options = {"xla_cpu_use_fusion_emitters": False}
    if not jax.config.read("jax_disable_most_optimizations"):
        options["xla_backend_optimization_level"] = "2"
    return options


@functools.cache
def _known(options: tuple[tuple[str, bool | str], ...]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(dict(options))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def compiled(function: Callable[Given, Result], *, static_argnames: tuple[str, ...] = ()) -> Callable[Given, Result]:
    """`jax.jit`; on a CPU with `cpu_options`, where nothing around it is being traced: JAX refuses options elsewhere.

    A function that is jitted from outside is compiled as the outside says.
    """
    inside = jax.jit(function, static_argnames=static_argnames)
    alone = functools.cache(lambda: jax.jit(function, static_argnames=static_argnames, compiler_options=cpu_options()))

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        on_top = get_opaque_trace_state() == _untraced() and jax.default_backend() == "cpu"
        return (alone() if on_top else inside)(*args, **kwargs)

    return call


@functools.cache
def _untraced() -> object:
    """What a thread says that traces nothing: this one may be in the middle of a trace."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(get_opaque_trace_state).result()


def after(x: Array, computed: Array) -> Array:
    """x, available only once `computed` is.

    On a CPU two batched factorisations that do not depend on each other have waited for each other's threads for ever.
    That does not happen at will, so no test shows it. Zero times a float is not folded away, for it may be NaN.
    """
    return x + 0 * computed.reshape(-1)[0]
