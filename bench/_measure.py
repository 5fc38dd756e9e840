"""Timing of a JAX function and of a Python one, on the wall and by the processor; slopes; the machine."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds; medians over `repeats` calls after a warm-up. `cpu` adds up the process's threads."""

    compile: float
    run: float
    cpu: float
    repeats: int


def jitted(function: Callable[..., Any], *args: Any, repeats: int) -> tuple[Timing, Any]:
    """Compile `function(*args)` as one program, run it `repeats` times and give back its last output too."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(*args))
    timing, output = plain(lambda: jax.block_until_ready(compiled(*args)), repeats=repeats)
    return timing._replace(compile=seconds), output


def plain(function: Callable[[], Any], *, repeats: int) -> tuple[Timing, Any]:
    """The same for a Python function, without warm-up or compile time."""
    walls, cpus, output = [], [], None
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        output = function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Timing(0.0, statistics.median(walls), statistics.median(cpus), repeats), output


def slope(sizes: list[int], values: list[float]) -> float:
    """Least-squares slope of log value over log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    device = jax.local_devices()[0]
    return {
        "system": platform.platform(),
        "cores": cores(),
        "device": f"{len(jax.local_devices())} × {device.platform} {device.device_kind}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "not set"),
        "load": load(),
    }


def load() -> float | None:
    """Processes that want to run, over the last minute; above the number of cores no time here is to be trusted."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
