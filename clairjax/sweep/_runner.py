"""Run a replicate function over cells x replicates: one compile a cell, blocks spread over the devices."""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

from .._cores import cores
from .._progress import Progress
from ._begin import Asked, Begun, asked, begin, check_part, told
from ._execute import CellRun, Executor, threads
from ._plan import Cell, labels, replicates_in
from ._processor import several, tally
from ._results import Results
from ._store import Store
from ._trace import Replicate


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

    Replicate i of cell c gets the key `fold_in(fold_in(key, id(c)), i)`, where id(c) is a hash of the cell's fields.
    So adding, removing or reordering cells or replicates changes no other result. A device computes `lane_width`
    replicates at once, always in the same program. So the number of devices and the order of the blocks change no bit.
    Another lane width changes the last digits.

    On CPU as many such programs run at once as there are cores. Matrices are factored one by one there: in jaxlib,
    batched factorisations can deadlock. Lanes are batched. On CPU they are computed in turn in a cell whose replicate,
    as traced, holds over 2 MiB: a batch would leave the cache. The manifest says which.

    **Args:**

    - `replicate`: a function of a key and a cell that returns a dict of arrays, with the same names and shapes each
        time. Arrays are bool, integer, floating or complex. It is traced once a cell. A boolean output `failed`
        marks a replicate that failed.
    - `cells`: frozen dataclasses or NamedTuples of numbers, strings, bools, None, tuples and frozen
        dataclasses of those. Static: shapes and Python branches may depend on them.
    - `key`: typed key, as from `jax.random.key`.
    - `replicates`: replicates a cell, 1 or more.
    - `lane_width`: replicates that a device computes at once. None: that of the folder `out` if it holds one.
        Otherwise what fits in 256 MiB (2 GiB on an accelerator) by the traced program, at most 32 (1024) and at most
        an eighth of `replicates`.
    - `out`: folder that receives `manifest.json` and each block of `lane_width` replicates when it is done.
        If it holds this sweep already, only what is missing is computed; cells and replicates may be added. A
        block that is damaged or foreign is reported by a warning and computed again. Of two sweeps that start
        in one folder at once, one gets it and the other is refused. Several processes may run one sweep there:
        each computes what it finds missing, to the same bits.
    - `arguments`: JSON values to record in the manifest, and to be equal when the sweep goes on: what
        `replicate` closes over.
    - `progress`: show the cell and its phase by a bar on a terminal; None: the bar alone. Elsewhere, and without the
        extra `clairjax[experiments]`, a line for each tenth of the replicates.
    - `devices`: the devices to use, one or more; None: all devices of this process.

    **Returns:** `Results`: arrays with a leading replicate axis for each cell; means, standard errors,
    failures, tables.

    **Warns:** of blocks that are damaged or foreign, and of blocks from several kinds of CPU, whose last digits
    differ: then it says what to set.

    **Raises:** `ValueError` if an argument is invalid. Likewise if `out` holds a sweep with another key, lane width,
    program, arguments, kind of device or version of JAX; the message names what differs. Likewise if its
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
    sweep = asked(replicate, cells, key, replicates, lane_width, arguments, devices)
    begun = begin(sweep, Store(out), (0, 1), "running")
    store = begun.store
    finished: dict[Cell, CellRun] = {}
    with told(store, started), Progress(len(sweep.cells) * replicates, progress) as bar:
        bar.show("prepare")
        store.manifest["processors"] = []
        executor = _executor(sweep, begun, bar)
        # Programs are compiled side by side and ahead of the cell that runs: compiling is most of a short sweep.
        with threads(cores()) as compilers:
            prepared = [executor.prepare(cell, begun.programs[cell], compilers) for cell in begun.blocks]
            for one in prepared:
                finished[one.cell] = executor.run(one)
                known = (each for result in finished.values() for each in result.processors)
                store.manifest["processors"] = tally(known)
                store.write_manifest()
    if (mixed := several(store.manifest["processors"])) is not None:
        warnings.warn(mixed, stacklevel=2)
    return Results(
        {cell: result.arrays for cell, result in finished.items()},
        {cell: result.failed for cell, result in finished.items()},
        {cell: result.compile_seconds for cell, result in finished.items()},
        {cell: result.run_seconds for cell, result in finished.items()},
        store.manifest,
    )


def run_part(
    replicate: Replicate,
    cells: Sequence[Cell],
    *,
    part: tuple[int, int],
    key: Array,
    replicates: int,
    out: str | os.PathLike[str],
    lane_width: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> int:
    """Compute and store one of n parts of a sweep, so that processes share it: on many machines, by any engine.

    A part is a stretch of all cells' blocks in order. Parts need nothing of each other and come in any order, also at
    once. `run` with the same arguments then reads all blocks, computes what is missing, and returns the results. On
    CPUs of one kind they are those of one process, to the bit. A part that was killed is started again, or left to
    `run`. Another n may follow, since a stored block is neither computed again nor written again.

    **Args:** those of `run`, and

    - `part`: (i, n) with 0 <= i < n. There may be more parts than processes, and than blocks.
    - `out`: a folder that all processes see. The part that comes first writes `manifest.json`; other parts leave it
        as it is, and refuse a folder of another sweep.

    **Returns:** the number of blocks that it computed.

    **Warns:** of blocks that are damaged or foreign, as `run`.

    **Raises:** as `run`.

    **Cost:** its share of the replicates, and one compile of each cell in its stretch.

    >>> import tempfile
    >>> from typing import NamedTuple
    >>> import jax
    >>> from clairjax import sweep
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> def replicate(key, cell):
    ...     return {"mean": jax.random.normal(key, (cell.size,)).mean()}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     what = {"key": jax.random.key(0), "replicates": 200, "out": out}
    ...     [sweep.run_part(replicate, [Cell(4), Cell(64)], part=(i, 3), **what) for i in (2, 0, 1)]
    ...     sweep.run(replicate, [Cell(4), Cell(64)], **what)
    [6, 5, 5]
    Results(2 cells x 200 replicates, 0 failed)
    """
    check_part(part, out)
    sweep = asked(replicate, cells, key, replicates, lane_width, arguments, devices)
    begun = begin(sweep, Store(out), part, "in parts")
    computed = 0
    total = sum(replicates_in(blocks, begun.lane_width, replicates) for blocks in begun.blocks.values())
    with Progress(total, progress) as bar:
        bar.show("prepare")
        executor = _executor(sweep, begun, bar)
        with threads(cores()) as compilers:
            for one in [executor.prepare(cell, begun.programs[cell], compilers) for cell in begun.blocks]:
                executor.compute(one)
                computed += len(one.missing)
    begun.store.check()
    return computed


def _executor(sweep: Asked, begun: Begun, bar: Progress) -> Executor:
    store, width, needed = begun.store, begun.lane_width, begun.blocks
    return Executor(sweep.key, sweep.replicates, width, needed, sweep.devices, store, bar, labels(sweep.cells))
