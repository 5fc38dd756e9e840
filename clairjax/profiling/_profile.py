"""Compile and run time, FLOPs, bytes and memory of a function, from its own compiled program."""

import dataclasses
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np


_TRACED_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Profile:
    """Costs of one call. Times in seconds, sizes in bytes; None where the back end does not tell.

    `flops` and `bytes_accessed` are XLA's count for the optimised program. It counts one trip of each loop, whatever
    the number of trips, and nothing inside a library call (LAPACK, cuSOLVER). Where `loops` is above 0 or matrices are
    factored, these are lower bounds. Of a condition it counts the dearest branch.
    """

    name: str
    device: str
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    run_seconds: float
    fastest_seconds: float
    repeats: int
    loops: int | None
    flops: float | None
    bytes_accessed: float | None
    temporary_bytes: int | None
    argument_bytes: int | None
    output_bytes: int | None
    trace_folder: str | None

    @property
    def flops_per_second(self) -> float | None:
        return None if self.flops is None else self.flops / self.run_seconds

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.bytes_accessed is None else self.bytes_accessed / self.run_seconds

    def to_dict(self) -> dict[str, str | int | float | None]:
        """All of it, rates included, as JSON values."""
        rates = {"flops_per_second": self.flops_per_second, "bytes_per_second": self.bytes_per_second}
        return dataclasses.asdict(self) | rates

    def __str__(self) -> str:
        loops = f", one trip of each of {self.loops} loops" if self.loops else ""
        rows = [
            ("trace", _scaled(self.trace_seconds, "s")),
            ("lower", _scaled(self.lower_seconds, "s")),
            ("compile", _scaled(self.compile_seconds, "s")),
            (
                "run",
                f"{_scaled(self.run_seconds, 's')} (median of {self.repeats}; fastest "
                f"{_scaled(self.fastest_seconds, 's')})",
            ),
            (
                "arithmetic",
                f"{_scaled(self.flops, 'FLOP')} ({_scaled(self.flops_per_second, 'FLOP/s')}{loops})",
            ),
            (
                "memory traffic",
                f"{_scaled(self.bytes_accessed, 'B')} ({_scaled(self.bytes_per_second, 'B/s')}{loops})",
            ),
            ("temporary memory", _scaled(self.temporary_bytes, "B")),
            ("arguments", _scaled(self.argument_bytes, "B")),
            ("outputs", _scaled(self.output_bytes, "B")),
        ]
        if self.trace_folder is not None:
            rows.append(("trace written to", self.trace_folder))
        width = max(len(label) for label, _ in rows)
        return "\n".join([f"{self.name} on {self.device}", *(f"  {label:<{width}}  {text}" for label, text in rows)])


def profile(
    fn: Callable[..., Any],
    *args: Any,
    repeats: int = 20,
    trace: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Profile:
    """Compile `fn(*args, **kwargs)` as one program, run it `repeats` times, and say what it costs.

    **Args:**

    - `fn`: a function that `jax.jit` can compile (jitted already or not). Arrays among its arguments, of JAX
        or NumPy, are traced; all else is static.
    - `args`, `kwargs`: its arguments. Keyword arguments named `repeats` and `trace` are taken by `profile`.
    - `repeats`: timed calls after one warm-up, each waited for; 1 or more.
    - `trace`: folder that receives a trace of three more calls, for TensorBoard (`--logdir DIR`, tab Profile)
        or, from the file `perfetto_trace.json.gz` inside, ui.perfetto.dev. Each call is a step named after
        `fn`; named scopes are in the operations' metadata. Traces that are there already stay.

    **Returns:** `Profile`: `print` it for a table, `.to_dict()` for JSON.

    **Raises:** `ValueError` if `repeats` is below 1, `OSError` if the trace cannot be written.

    **Cost:** one compile, `repeats + 1` calls, three more with `trace`. A compile found in JAX's persistent
    cache is short; the time given is what this call took.

    >>> import jax.numpy as jnp
    >>> from clairjax.profiling import profile
    >>> measured = profile(lambda x: x @ x, jnp.ones((64, 64)), repeats=3)
    >>> measured.flops
    524288.0
    """
    if repeats < 1:
        raise ValueError(f"repeats: must be 1 or more, got {repeats}.")
    name = getattr(fn, "__name__", type(fn).__name__)
    arrays, static = eqx.partition((args, kwargs), lambda leaf: isinstance(leaf, jax.Array | np.ndarray))

    def call(arrays: Any) -> Any:
        args, kwargs = eqx.combine(arrays, static)
        return eqx.filter(fn(*args, **kwargs), eqx.is_array)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", name)
    arrays = jax.device_put(arrays)
    start = time.perf_counter()
    traced = jax.jit(call).trace(arrays)
    after_trace = time.perf_counter()
    lowered = traced.lower()
    after_lower = time.perf_counter()
    compiled = lowered.compile()
    after_compile = time.perf_counter()
    jax.block_until_ready(compiled(arrays))
    seconds = [_timed(compiled, arrays) for _ in range(repeats)]
    if trace is not None:
        _write_trace(Path(trace), name, compiled, arrays)
    device = _device(arrays)
    return Profile(
        name=name,
        device=f"{device.platform} {device.device_kind}",
        trace_seconds=after_trace - start,
        lower_seconds=after_lower - after_trace,
        compile_seconds=after_compile - after_lower,
        run_seconds=statistics.median(seconds),
        fastest_seconds=min(seconds),
        repeats=repeats,
        trace_folder=None if trace is None else os.fspath(trace),
        **_counts(compiled),
    )


def _timed(compiled: jax.stages.Compiled, arrays: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compiled(arrays))
    return time.perf_counter() - start


def _device(arrays: Any) -> jax.Device:
    for leaf in jax.tree.leaves(arrays):
        return next(iter(leaf.devices()))
    return jax.local_devices()[0]


def _write_trace(folder: Path, name: str, compiled: jax.stages.Compiled, arrays: Any) -> None:
    """Beside the other traces of the folder, and among them once it is whole."""
    runs = folder / "plugins" / "profile"
    runs.mkdir(parents=True, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of the interpreter would drown the program's own events
    with tempfile.TemporaryDirectory(prefix=".trace.", dir=folder) as beside:
        jax.profiler.start_trace(beside, create_perfetto_trace=True, profiler_options=options)
        try:
            for step in range(_TRACED_CALLS):
                with jax.profiler.StepTraceAnnotation(name, step_num=step):
                    jax.block_until_ready(compiled(arrays))
        finally:
            _stop_trace()
        (run,) = (Path(beside) / "plugins" / "profile").iterdir()
        _move(run, runs / run.name)


def _stop_trace() -> None:
    try:
        jax.profiler.stop_trace()
    except jax.errors.JaxRuntimeError as error:  # as of a full disk
        raise OSError(f"trace: {error}") from error


def _move(run: Path, target: Path) -> None:
    """`run` gets the name, or, where another run of that second has it, a longer one."""
    while True:
        try:
            os.rename(run, target)
            return
        except OSError:
            if not target.exists():
                raise
            target = target.with_name(f"{target.name}_")


def _counts(compiled: jax.stages.Compiled) -> dict[str, Any]:
    """What the compiled program says of itself; a back end may leave out any of it."""
    cost, memory, text = (_ask(getattr(compiled, what)) for what in ("cost_analysis", "memory_analysis", "as_text"))

    def counted(name: str) -> float | None:
        value = cost.get(name) if isinstance(cost, dict) else None
        return float(value) if value is not None and value >= 0 else None

    return {
        "loops": None if text is None else len(re.findall(r"\swhile\(", text)),
        "flops": counted("flops"),
        "bytes_accessed": counted("bytes accessed"),
        "temporary_bytes": getattr(memory, "temp_size_in_bytes", None),
        "argument_bytes": getattr(memory, "argument_size_in_bytes", None),
        "output_bytes": getattr(memory, "output_size_in_bytes", None),
    }


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


def _scaled(value: float | None, unit: str) -> str:
    """Three digits and a prefix: 1234567 B is 1.23 MB."""
    if value is None:
        return "not told"
    for power, prefix in (
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ):
        if abs(value) >= power:
            return f"{value / power:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if unit == "s" and value else f"{value:.3g} {unit}"
