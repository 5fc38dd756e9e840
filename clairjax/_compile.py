"""How drivers are compiled: as one program each, by the quicker of XLA's two compilers for small loops on a CPU."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import jax
from jax.extend.core import get_opaque_trace_state


Options = dict[str, bool | str]
Given = ParamSpec("Given")
Result = TypeVar("Result")


@functools.cache
def cpu_options() -> Options | None:
    """Options for programs of many small loops on a CPU; None where this jaxlib does not know them.

    XLA's fusion emitters take twice as long to compile the eager `clair` of 10 × 40 × 30 (3.7 against 2.1 s of
    processor time, jaxlib 0.10.2), and what they compile is no faster (7 ms).
    """
    options: Options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0).lower().compile(options)
    except jax.errors.JaxRuntimeError:
        return None
    return options


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
