"""One cell: read the blocks that exist; compile if any is missing, run those chunk by chunk, store each."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import NamedTuple

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, UInt32

from .._compile import cpu_options
from .._cores import cores
from .._factorisations import one_matrix_at_a_time
from .._progress import Progress
from .._typing import Key
from ._plan import Cell, cell_id, cell_key, chunks_of, lane_indices, lanes_in_turn, replicates_in
from ._processor import Processor, processor
from ._results import failed_replicates
from ._store import Arrays, Block, Store
from ._trace import Program


Compute = Callable[[UInt32[np.ndarray, " lanes"]], Arrays]


class CellRun(NamedTuple):
    arrays: Arrays
    failed: Bool[np.ndarray, " replicates"]
    compile_seconds: float
    run_seconds: float
    processors: list[Processor | None]  # of the blocks


class Prepared(NamedTuple):
    cell: Cell
    program: Program
    blocks: dict[int, Block]  # those stored already
    missing: list[int]
    compiling: Future[tuple[Compute, float]] | None


class Executor(NamedTuple):
    key: Key
    replicates: int
    lane_width: int
    needed: Mapping[Cell, range]  # blocks
    devices: Sequence[jax.Device]
    store: Store
    bar: Progress
    labels: Mapping[Cell, str]

    def prepare(self, cell: Cell, program: Program, compilers: ThreadPoolExecutor) -> Prepared:
        """Read the blocks that exist; if any is missing, have the program compiled, ahead of its turn to run."""
        name = cell_id(cell)
        read = {b: self.store.read(name, b, program.outputs, self.lane_width) for b in self.needed[cell]}
        blocks = {b: block for b, block in read.items() if block is not None}
        self.bar.advance(self._count(blocks))
        missing = [b for b in read if b not in blocks]
        if not missing:
            return Prepared(cell, program, blocks, missing, None)
        start = time.perf_counter()
        # lowered here: in another thread a caller's `with jax.enable_x64(True)` would not hold
        compile = lower_blocks(program, self.devices, cell_key(self.key, cell), self.lane_width)
        spent = program.seconds + time.perf_counter() - start
        return Prepared(cell, program, blocks, missing, compilers.submit(_timed, compile, spent))

    def compute(self, prepared: Prepared) -> dict[int, Block]:
        """All blocks that are needed of the cell; those that were missing are stored."""
        cell, program, blocks, missing, compiling = prepared
        if compiling is None:
            return blocks
        self.bar.show(f"compile {self.labels[cell]}".rstrip())
        compute, self.store.manifest["cells"][cell_id(cell)]["compile_seconds"] = compiling.result()
        self.bar.show(f"run {self.labels[cell]}".rstrip())
        return blocks | self._compute(cell_id(cell), program, compute, missing)

    def run(self, prepared: Prepared) -> CellRun:
        blocks = self.compute(prepared)
        needed = [blocks[b] for b in self.needed[prepared.cell]]
        arrays = {
            name: np.concatenate([block.arrays[name] for block in needed])[: self.replicates]
            for name in prepared.program.outputs
        }
        failed = failed_replicates(arrays)
        entry = self.store.manifest["cells"][cell_id(prepared.cell)]
        entry["failures"] = np.flatnonzero(failed).tolist()
        entry["run_seconds"] = sum(block.seconds for block in needed)
        processors = [block.processor for block in needed]
        return CellRun(arrays, failed, entry.get("compile_seconds", 0.0), entry["run_seconds"], processors)

    def _count(self, blocks: Iterable[int]) -> int:
        return replicates_in(blocks, self.lane_width, self.replicates)

    def _compute(self, name: str, program: Program, compute: Compute, missing: list[int]) -> dict[int, Block]:
        """Compute the missing blocks a chunk at a time, each stored as soon as it is there.

        Where another process has stored one meanwhile, that block is taken: it may be of another processor.
        """
        blocks = {}
        here = processor() if self.devices[0].platform == "cpu" else None
        chunks = chunks_of(missing, len(self.devices))
        last = time.perf_counter()
        with threads(_chunks_at_once(self.devices)) as pool:
            running = {pool.submit(self._chunk, compute, chunk): chunk for chunk in chunks}
            for future in as_completed(running):
                seconds, last = time.perf_counter() - last, time.perf_counter()
                chunk = running[future]
                for b, arrays in zip(chunk, future.result(), strict=True):
                    blocks[b] = Block(arrays, seconds / len(chunk), here)
                    if not self.store.write(name, b, blocks[b]):
                        stored = self.store.read(name, b, program.outputs, self.lane_width)
                        blocks[b] = stored or blocks[b]
                self.bar.advance(self._count(chunk))
        return blocks

    def _chunk(self, compute: Compute, chunk: list[int]) -> list[Arrays]:
        try:
            arrays = compute(lane_indices(chunk, len(self.devices), self.lane_width))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                error.add_note(f"A lane_width below {self.lane_width} needs less memory.")
            raise
        lanes = [slice(i * self.lane_width, (i + 1) * self.lane_width) for i in range(len(chunk))]
        return [{name: array[part] for name, array in arrays.items()} for part in lanes]


@contextmanager
def threads(number: int | None) -> Iterator[ThreadPoolExecutor]:
    """On an error what has not begun is left out. An interruption does not wait for what is in flight, either.

    The interpreter's end does, so that nothing is compiled or computed while it is taken down.
    """
    pool = ThreadPoolExecutor(number)
    wait = True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


def _timed(compile: Callable[[], Compute], spent: float) -> tuple[Compute, float]:
    start = time.perf_counter()
    return compile(), spent + time.perf_counter() - start


def _chunks_at_once(devices: Sequence[jax.Device]) -> int:
    """One chunk, which computes while the last one is stored; on CPU as many as give each core a device."""
    return max(1, cores() // len(devices)) if devices[0].platform == "cpu" else 1


def lower_blocks(program: Program, devices: Sequence[jax.Device], key: Key, lane_width: int) -> Callable[[], Compute]:
    """The program, to be compiled by a call: indices of `lane_width` replicates a device in, their outputs out.

    Under `shard_map` a device runs the program of its own lanes. So no loop waits for another device's slowest
    replicate, and the lanes' arithmetic does not depend on the number of devices.
    """
    mesh = Mesh(np.array(devices), ("replicates",))  # `jax.make_mesh` would refuse arguments that are not sharded
    shared, split = PartitionSpec(), PartitionSpec("replicates")
    on_cpu = devices[0].platform == "cpu"
    one = jaxpr_as_fun(one_matrix_at_a_time(program.closed) if on_cpu else program.closed)

    in_turn = lanes_in_turn(program.bytes_per_replicate, devices[0].platform)

    def clairjax_sweep(key: Array, indices: Array) -> dict[str, Array]:
        replicate = lambda i: one(jax.random.fold_in(key, i))
        outputs = jax.lax.map(replicate, indices) if in_turn else jax.vmap(replicate)(indices)
        return dict(zip(program.outputs, outputs, strict=True))

    # check_vma=False: loops whose carry starts from a constant are not tracked as varying over devices
    sharded = jax.shard_map(clairjax_sweep, mesh=mesh, in_specs=(shared, split), out_specs=split, check_vma=False)
    placed = jax.device_put(key, NamedSharding(mesh, shared))
    over_lanes = NamedSharding(mesh, split)
    lanes = jax.ShapeDtypeStruct((len(devices) * lane_width,), np.uint32, sharding=over_lanes)
    lowered = jax.jit(sharded).lower(placed, lanes)

    def compile() -> Compute:
        compiled = lowered.compile(cpu_options() if on_cpu else None)
        return lambda indices: jax.device_get(compiled(placed, jax.device_put(indices, over_lanes)))

    return compile
