"""How a sweep begins: what is asked for is checked and traced, and the folder is claimed for it."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np
from jaxtyping import Array

from .._compile import wanted_options
from .._typing import Key
from .._validate import fail, is_integer
from ._plan import (
    Cell,
    blocks_for,
    cell_id,
    cell_record,
    check_cells,
    default_lane_width,
    is_key,
    lanes_in_turn,
    part_of,
)
from ._store import Store
from ._trace import Program, Replicate, trace


_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


class Asked(NamedTuple):
    replicate: Replicate
    cells: tuple[Cell, ...]
    key: Key
    replicates: int
    lane_width: int | None
    arguments: Mapping[str, Any] | None
    devices: Sequence[jax.Device]


class Begun(NamedTuple):
    store: Store
    programs: dict[Cell, Program]
    blocks: dict[Cell, range]  # of the cells that have blocks in this part
    lane_width: int


def asked(
    replicate: Replicate,
    cells: Sequence[Cell],
    key: Array,
    replicates: int,
    lane_width: int | None,
    arguments: Mapping[str, Any] | None,
    devices: Sequence[jax.Device] | None,
) -> Asked:
    cells = check_cells(cells)
    devices = jax.local_devices() if devices is None else list(devices)
    _check(key, replicates, lane_width, devices)
    return Asked(replicate, cells, key, replicates, lane_width, arguments, devices)


def check_part(part: tuple[int, int], out: object) -> None:
    if not (isinstance(part, tuple) and len(part) == 2 and all(map(is_integer, part)) and 0 <= part[0] < part[1]):
        raise fail("part", "(i, n) with 0 <= i < n", part)
    if out is None:
        raise fail("out", "a folder that all parts see", out)


def begin(asked: Asked, store: Store, part: tuple[int, int], status: str) -> Begun:
    """Trace the cells of this part, all of them where the lane width has to be found, and claim the folder."""
    programs: dict[Cell, Program] = {}

    def add(cells: Iterable[Cell]) -> None:
        new = [cell for cell in cells if cell not in programs]
        programs.update((cell, trace(asked.replicate, asked.key, cell)) for cell in new)

    device = asked.devices[0]
    about = circumstances(asked.replicate, asked.replicates, asked.devices) | {"status": status}
    while True:  # again where another process came first, then to its manifest
        width = asked.lane_width or store.lane_width
        if width is None:
            add(asked.cells)
            largest = max(program.bytes_per_replicate for program in programs.values())
            width = default_lane_width(largest, asked.replicates, device.platform)
        stretches = part_of(len(asked.cells), len(blocks_for(asked.replicates, width)), part)
        blocks = {cell: stretch for cell, stretch in zip(asked.cells, stretches, strict=True) if stretch}
        add(blocks)
        entries = {cell_id(cell): _entry(cell, program, device.platform) for cell, program in programs.items()}
        if store.claim(_arguments(asked.key, width, asked.arguments, device), entries, about):
            return Begun(store, programs, blocks, width)


@contextmanager
def told(store: Store, started: float) -> Iterator[None]:
    """The manifest is written now and at the end, then with how it ended and how long all calls together took."""
    store.write_manifest()
    before, status = store.manifest.get("wall_seconds", 0.0), "failed"
    try:
        yield
        status = "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        store.manifest |= {"status": status, "wall_seconds": before + time.perf_counter() - started}
        store.write_manifest()


def _check(key: Array, replicates: int, lane_width: int | None, devices: Sequence[jax.Device]) -> None:
    if not is_key(key):
        raise ValueError(f"key: must be one typed key, as jax.random.key(seed) gives; got {key!r}.")
    if not is_integer(replicates) or not 1 <= replicates < 2**31:
        raise ValueError(f"replicates: must be an integer from 1 to 2**31 - 1, got {replicates}.")
    if lane_width is not None and (not is_integer(lane_width) or lane_width < 1):
        raise ValueError(f"lane_width: must be an integer of 1 or more, got {lane_width}.")
    if not devices:
        raise ValueError("devices: at least one is needed, got none.")


def _arguments(key: Array, lane_width: int, arguments: Mapping[str, Any] | None, device: jax.Device) -> dict[str, Any]:
    """All that decides the bits, except the programs of the cells."""
    return {
        "key": {
            "implementation": str(jax.random.key_impl(key)),
            "data": np.asarray(jax.random.key_data(key)).tolist(),
        },
        **recorded(lane_width, arguments, device),
    }


def recorded(lane_width: int, arguments: Mapping[str, Any] | None, device: jax.Device) -> dict[str, Any]:
    try:
        given = json.loads(json.dumps(dict(arguments or {})))
    except TypeError as error:
        raise ValueError(f"arguments: must be JSON values, got {arguments!r} ({error}).") from error
    return {
        "lane_width": lane_width,
        "arguments": given,
        "device": f"{device.platform} {device.device_kind}",
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "compiler_options": wanted_options() if device.platform == "cpu" else None,
        **{name: getattr(jax.config, name) for name in _SETTINGS},
    }


def _entry(cell: Cell, program: Program, platform: str) -> dict[str, Any]:
    outputs = {name: [str(array.dtype), *array.shape] for name, array in program.outputs.items()}
    lanes = "in turn" if lanes_in_turn(program.bytes_per_replicate, platform) else "at once"
    # Another order of the lanes' arithmetic changes the last digits: it is another program.
    return {
        "fields": cell_record(cell),
        "program": f"{program.fingerprint}, lanes {lanes}",
        "lanes": lanes,
        "outputs": outputs,
    }


def circumstances(replicate: Callable[..., Any], replicates: int, devices: Sequence[jax.Device]) -> dict[str, Any]:
    try:
        version = metadata.version("clairjax")
    except metadata.PackageNotFoundError:
        version = "not installed"
    name = getattr(replicate, "__qualname__", type(replicate).__qualname__)
    return {
        "status": "running",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "replicate": f"{replicate.__module__}.{name}",
        "replicates": replicates,
        "devices": len(devices),
        "versions": {"clairjax": version, "python": platform.python_version(), "numpy": np.__version__},
    }
