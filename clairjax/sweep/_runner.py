"""Run a replicate function over cells x replicates: one compile a cell, blocks spread over the devices."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import jax
import jaxlib
import numpy as np
from jaxtyping import Array

from .._progress import Progress
from .._validate import is_integer
from ._execute import CellRun, Executor, threads
from ._plan import Cell, cell_id, cell_record, check_cells, default_lane_width, is_key, labels, lanes_in_turn
from ._results import Results
from ._store import Store
from ._trace import Program, Replicate, trace


_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


def run(
    replicate: Replicate,
    cells: Sequence[Cell],
    *,
    key: Array,
    replicates: int,
    lane_width: int | None = None,
    out: str | os.PathLike[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Results:
    """Run `replicate(key, cell)` for replicates 0, 1, … of each cell, batched and spread over the devices.

    Replicate i of cell c gets the key `fold_in(fold_in(key, id(c)), i)`, where id(c) is a hash of the cell's
    fields: adding, removing or reordering cells or replicates changes no other result. A device computes
    `lane_width` replicates at once, always in the same program, so the number of devices and the order of the
    blocks change no bit; another lane width changes the last digits. On CPU as many such programs run at once as
    there are cores, and matrices are factored one by one: in jaxlib, batched factorisations can deadlock. Lanes are
    batched; on CPU they are computed in turn in a cell whose replicate, as traced, holds over 2 MiB, since a batch
    would leave the cache. The manifest says which.

    **Args:**

    - `replicate`: a function of a key and a cell that returns a dict of arrays (bool, integer, floating or
        complex) with the same names and shapes each time. It is traced once a cell. A boolean output `failed`
        marks a replicate that failed.
    - `cells`: frozen dataclasses or NamedTuples of numbers, strings, bools, None, tuples and frozen
        dataclasses of those. Static: shapes and Python branches may depend on them.
    - `key`: typed key, as from `jax.random.key`.
    - `replicates`: replicates a cell, 1 or more.
    - `lane_width`: replicates that a device computes at once. None: that of the folder `out` if it holds one,
        else what fits in 256 MiB (2 GiB on an accelerator) by the traced program, at most 32 (1024) and at
        most an eighth of `replicates`.
    - `out`: folder that receives `manifest.json` and each block of `lane_width` replicates when it is done.
        If it holds this sweep already, only what is missing is computed; cells and replicates may be added. A
        block that is damaged or foreign is reported by a warning and computed again. Of two sweeps that start
        in one folder at once, one gets it and the other is refused. Several processes may run one sweep there:
        each computes what it finds missing, to the same bits.
    - `arguments`: JSON values to record in the manifest, and to be equal when the sweep goes on: what
        `replicate` closes over.
    - `progress`: show the cell and its phase, on a terminal by a bar, elsewhere (and without the extra
        `clairjax[experiments]`) by a line for each tenth of the replicates; None: the bar alone.
    - `devices`: the devices to use, one or more; None: all devices of this process.

    **Returns:** `Results`: arrays with a leading replicate axis for each cell; means, standard errors,
    failures, tables.

    **Raises:** `ValueError` if an argument is invalid, or `out` holds a sweep with another key, lane width,
    program, arguments, kind of device or version of JAX: the message names what differs. Likewise if its
    `manifest.json` is not a sweep's or is damaged; the file stays as it is.

    **Cost:** one compile a cell; memory `lane_width` times that of one replicate on each device (on CPU: each
    core). A kill loses the blocks that are being computed, as many. The last block of a cell is computed
    whole: up to `lane_width - 1` replicates beyond those asked for are stored and used if `replicates` grows.

    Use plain `jax.vmap` when nothing has to be stored and one batch fits in memory.

    >>> from typing import NamedTuple
    >>> import jax
    >>> from clairjax import sweep
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> def replicate(key, cell):
    ...     return {"mean": jax.random.normal(key, (cell.size,)).mean()}
    >>> results = sweep.run(replicate, [Cell(4), Cell(64)], key=jax.random.key(0), replicates=200)
    >>> [round(float(error), 2) for error in results.standard_error("mean").values()]
    [0.04, 0.01]
    """
    started = time.perf_counter()
    cells = check_cells(cells)
    devices = jax.local_devices() if devices is None else list(devices)
    _check(key, replicates, lane_width, devices)
    store = Store(out)
    programs = {cell: trace(replicate, key, cell) for cell in cells}
    largest = max(program.bytes_per_replicate for program in programs.values())
    default = default_lane_width(largest, replicates, devices[0].platform)
    entries = {cell_id(cell): _entry(cell, program, devices[0].platform) for cell, program in programs.items()}
    circumstances = _circumstances(replicate, replicates, devices)
    claimed = False
    while not claimed:  # again where another process came first, then to its manifest
        width = lane_width or store.lane_width or default
        claimed = store.claim(_arguments(key, width, arguments, devices[0]), entries, circumstances)
    before = store.manifest.get("wall_seconds", 0.0)
    finished: dict[Cell, CellRun] = {}
    status = "failed"
    try:
        with Progress(len(cells) * replicates, progress) as bar:
            bar.show("prepare")
            executor = Executor(key, replicates, width, devices, store, bar, labels(cells))
            # Programs are compiled side by side and ahead of the cell that runs: compiling is most of a short sweep.
            with threads(os.cpu_count()) as compilers:
                prepared = [executor.prepare(cell, program, compilers) for cell, program in programs.items()]
                for one in prepared:
                    finished[one.cell] = executor.run(one)
                    store.write_manifest()
        status = "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        store.manifest |= {"status": status, "wall_seconds": before + time.perf_counter() - started}
        store.write_manifest()
    return Results(
        {cell: result.arrays for cell, result in finished.items()},
        {cell: result.failed for cell, result in finished.items()},
        {cell: result.compile_seconds for cell, result in finished.items()},
        {cell: result.run_seconds for cell, result in finished.items()},
        store.manifest,
    )


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
    try:
        given = json.loads(json.dumps(dict(arguments or {})))
    except TypeError as error:
        raise ValueError(f"arguments: must be JSON values, got {arguments!r} ({error}).") from error
    return {
        "key": {
            "implementation": str(jax.random.key_impl(key)),
            "data": np.asarray(jax.random.key_data(key)).tolist(),
        },
        "lane_width": lane_width,
        "arguments": given,
        "device": f"{device.platform} {device.device_kind}",
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
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


def _circumstances(replicate: Replicate, replicates: int, devices: Sequence[jax.Device]) -> dict[str, Any]:
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
