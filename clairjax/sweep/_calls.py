"""A sweep of replicates that are calls of Python, such as trainings: each is one stored result, and resumes alone."""

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from .._cores import cores
from .._progress import Progress
from .._validate import fail, is_integer
from ._begin import check_part, circumstances, recorded, told
from ._execute import threads
from ._plan import Cell, cell_id, cell_record, check_cells, check_names, labels, part_of
from ._processor import processor, several, tally
from ._results import Results, failed_replicates
from ._store import Arrays, Block, Store


Call = Callable[[int, Any, Path | None], Mapping[str, Any]]


def run_calls(
    replicate: Call,
    cells: Sequence[Cell],
    *,
    replicates: int,
    out: str | os.PathLike[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Results:
    """Call `replicate(number, cell, folder)` for replicates 0, 1, … of each cell: a sweep of what is not traced.

    For work that is long by itself and compiles its own programs. Calls of different cells run side by side, in
    threads: one a core on a CPU, one a device elsewhere. Each computes on a device of its own where there are
    several (`jax.default_device`).

    **Args:**

    - `replicate`: gives a dict of arrays, of the same names and shapes for all replicates of a cell. Everything random
        must follow from number and cell. `folder` is there for it to keep what lets it go on when it is killed; it is
        deleted once the result is stored. It is None where `out` is.
    - `cells`, `replicates`, `out`, `progress`: as in `run`.
    - `arguments`: JSON values that decide the results beside the cells. A folder with others is refused.

    **Returns:** `Results`.

    **Raises:** `ValueError` as `run` does.

    **Cost:** that of the calls; replicates of one number first, so that a program is compiled once for all others.

    >>> from typing import NamedTuple
    >>> from clairjax import sweep
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> results = sweep.run_calls(lambda number, cell, folder: {"sum": cell.size + number}, [Cell(4)], replicates=3)
    >>> results[Cell(4)]["sum"].tolist()
    [4, 5, 6]
    """
    started = time.perf_counter()
    cells, store = _begin(replicate, cells, replicates, out, arguments, "running")
    done: dict[tuple[int, Cell], Block] = {}
    with told(store, started):
        with Progress(len(cells) * replicates, progress) as bar:
            names = labels(cells)
            every = [(number, cell) for number in range(replicates) for cell in cells]
            for (number, cell), block, _ in _computed(replicate, every, store):
                done[number, cell] = block
                bar.show(names[cell] or "replicate")
                bar.advance(1)
        results = _results(done, cells, replicates, store)
    if (mixed := several(store.manifest["processors"])) is not None:
        warnings.warn(mixed, stacklevel=2)
    return results


def run_calls_part(
    replicate: Call,
    cells: Sequence[Cell],
    *,
    part: tuple[int, int],
    replicates: int,
    out: str | os.PathLike[str],
    arguments: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> int:
    """Call `replicate` for one of n parts of a sweep and store what it gives, so that processes share the sweep.

    **Args:** those of `run_calls`, and `part` and `out` as in `run_part`.

    **Returns:** the number of replicates that it computed.

    **Raises:** `ValueError` as `run` does.

    **Cost:** that of its calls.

    >>> import tempfile
    >>> from typing import NamedTuple
    >>> from clairjax import sweep
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> sums = lambda number, cell, folder: {"sum": cell.size + number}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     [sweep.run_calls_part(sums, [Cell(4)], part=(i, 2), replicates=3, out=out) for i in (0, 1)]
    ...     sweep.run_calls(sums, [Cell(4)], replicates=3, out=out)[Cell(4)]["sum"].tolist()
    [1, 2]
    [4, 5, 6]
    """
    check_part(part, out)
    cells, store = _begin(replicate, cells, replicates, out, arguments, "in parts")
    stretches = part_of(len(cells), replicates, part)
    own = [(number, cell) for cell, stretch in zip(cells, stretches, strict=True) for number in stretch]
    computed = 0
    with Progress(len(own), progress) as bar:
        for _, _, new in _computed(replicate, own, store):
            computed += new
            bar.advance(1)
    store.check()
    return computed


def _begin(
    replicate: Call,
    cells: Sequence[Cell],
    replicates: int,
    out: str | os.PathLike[str] | None,
    arguments: Mapping[str, Any] | None,
    status: str,
) -> tuple[tuple[Cell, ...], Store]:
    cells = check_cells(cells)
    if not is_integer(replicates) or replicates < 1:
        raise fail("replicates", "an integer of 1 or more", replicates)
    store = Store(out)
    devices = jax.local_devices()
    entries = {cell_id(cell): {"fields": cell_record(cell), "program": "called"} for cell in cells}
    about = circumstances(replicate, replicates, devices) | {"status": status}
    while not store.claim(recorded(1, arguments, devices[0]), entries, about):
        pass  # another process came first: to its manifest
    return cells, store


def _computed(
    replicate: Call, wanted: Sequence[tuple[int, Cell]], store: Store
) -> Iterator[tuple[tuple[int, Cell], Block, bool]]:
    """Stored ones first, then each as it is there: whose it is, the block, whether it is new."""
    missing = []
    for number, cell in wanted:
        block = store.read(cell_id(cell), number, None, 1)
        if block is None:
            missing.append((number, cell))
        else:
            yield (number, cell), block, False
    devices = jax.local_devices()
    on_cpu = devices[0].platform == "cpu"
    workers = max(len(devices), cores()) if on_cpu else len(devices)
    free: SimpleQueue[jax.Device] = SimpleQueue()
    for worker in range(workers):
        free.put(devices[worker % len(devices)])

    def compute(number: int, cell: Cell) -> tuple[tuple[int, Cell], Block, bool]:
        device = free.get()
        try:
            with jax.default_device(device):
                return (number, cell), _stored(replicate, number, cell, store), True
        finally:
            free.put(device)

    with threads(workers) as pool:
        for future in as_completed([pool.submit(compute, *each) for each in missing]):
            yield future.result()


def _stored(replicate: Call, number: int, cell: Cell, store: Store) -> Block:
    start, name = time.perf_counter(), cell_id(cell)
    own = None if store.folder is None else store.folder / name / f"unfinished-{number:06d}"
    if own is not None:
        own.mkdir(parents=True, exist_ok=True)
    arrays: Arrays = {key: np.asarray(value)[None] for key, value in replicate(number, cell, own).items()}
    check_names(cell, list(arrays))
    block = Block(arrays, time.perf_counter() - start, processor() if jax.default_backend() == "cpu" else None)
    if not store.write(name, number, block):  # another process was as quick
        block = store.read(name, number, None, 1) or block
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
    return block


def _results(done: Mapping[tuple[int, Cell], Block], cells: Sequence[Cell], replicates: int, store: Store) -> Results:
    arrays: dict[Cell, Arrays] = {}
    for cell in cells:
        parts = [done[number, cell].arrays for number in range(replicates)]
        kinds = [{name: (array.dtype.str, *array.shape) for name, array in part.items()} for part in parts]
        if other := [number for number, kind in enumerate(kinds) if kind != kinds[0]]:
            raise ValueError(
                f"replicate: it must return the same names, types and shapes for all replicates of {cell!r}, "
                f"got {kinds[0]} for 0 and {kinds[other[0]]} for {other[0]}"
                + ("." if store.folder is None else f". Choose a new folder if {store.folder} has another version's.")
            )
        arrays[cell] = {name: np.concatenate([part[name] for part in parts]) for name in sorted(parts[0])}
    failed = {cell: failed_replicates(arrays[cell]) for cell in cells}
    seconds = {cell: sum(done[number, cell].seconds for number in range(replicates)) for cell in cells}
    store.manifest["processors"] = tally(block.processor for block in done.values())
    for cell in cells:
        found = {"failures": np.flatnonzero(failed[cell]).tolist(), "run_seconds": seconds[cell]}
        store.manifest["cells"][cell_id(cell)] |= found
    return Results(arrays, failed, dict.fromkeys(cells, 0.0), seconds, store.manifest)
