"""What is computed: the cells' stable names, the keys of their replicates, and blocks of one fixed width."""

import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, UInt32

from .._typing import Key
from ._store import NAMES_NEVER


Cell = Hashable
Scalar = bool | int | float | str | None

_COLUMNS = ("cell", "replicate", "compile_seconds", "run_seconds")
_OUTPUTS_NEVER = (*_COLUMNS, *NAMES_NEVER)
_FIELDS_NEVER = (*_COLUMNS, "failed", "name", "index", "value")
_BLOCKS = 8
# Of one lane. A batch of 12 over as many in turn, measured on cores with 1 MiB of second-level cache. `clair` takes
# 1.5 times as long with 2.5 or 10 MiB a lane, CENTAUR with 15 MiB 2.4 times. FLUTE with 0.2 MiB takes half as long.
_CACHE = 2**21


class _Limits(NamedTuple):
    memory: int
    lanes: int


_CPU = _Limits(2**28, 32)
_ACCELERATOR = _Limits(2**31, 1024)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a frozen dataclass or a NamedTuple, else None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return None


def _canonical(value: Any, name: str) -> Any:
    """`value` as JSON that is equal exactly for equal values: 1 and 1.0 are one number."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and not math.isnan(value):
        return int(value) if value.is_integer() else value
    if (fields := _fields(value)) is not None:
        items = {key: _canonical(item, f"{name}.{key}") for key, item in fields.items()}
        return {"": type(value).__qualname__, **items}
    if isinstance(value, tuple):
        return [_canonical(item, name) for item in value]
    raise ValueError(
        f"cells: {name} must be a number, string, bool, None, or a tuple or frozen dataclass of those; "
        f"got {type(value).__name__} ({value!r})."
    )


def _content(cell: Cell) -> dict[str, Any]:
    if _fields(cell) is None:
        raise ValueError(f"cells: each must be a frozen dataclass or a NamedTuple, got {type(cell).__name__}.")
    return {key: value for key, value in _canonical(cell, "cell").items() if key}


def cell_record(cell: Cell) -> dict[str, Scalar]:
    """The cell as one row; a nested field is its class's name and dotted fields, a tuple is JSON text."""

    def rows(content: dict[str, Any], prefix: str) -> Iterator[tuple[str, Scalar]]:
        for name, value in content.items():
            if isinstance(value, dict):
                yield from rows(value, f"{prefix}{name}.")
            else:
                column = prefix + name if name else prefix.removesuffix(".")
                yield column, json.dumps(value) if isinstance(value, list) else value

    return dict(rows(_content(cell), ""))


def labels(cells: Sequence[Cell]) -> dict[Cell, str]:
    """Each cell by the fields that tell it from the others: nothing where there is one."""
    records = {cell: cell_record(cell) for cell in cells}
    fields = dict.fromkeys(field for record in records.values() for field in record)
    varied = [field for field in fields if len({str(record.get(field)) for record in records.values()}) > 1]
    return {
        cell: ", ".join(f"{field} {record[field]}" for field in varied if field in record)
        for cell, record in records.items()
    }


def cell_id(cell: Cell) -> str:
    """Sixteen hexadecimal digits from the cell's fields alone, not from its position or its class."""
    text = json.dumps(_content(cell), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cell_key(key: Key, cell: Cell) -> Key:
    return jax.random.fold_in(key, np.uint32(int(cell_id(cell)[:8], 16)))


def replicate_key(key: Key, cell: Cell, replicate: int) -> Key:
    """The key that a sweep gives to one replicate: `fold_in(fold_in(key, id of the cell), replicate)`.

    It depends on nothing else, so a single replicate can be repeated by hand, say one that failed.

    **Args:**

    - `key`: the sweep's key.
    - `cell`: one of its cells; only its fields count, not its place among the cells.
    - `replicate`: index of the replicate, 0 or more.

    **Returns:** the key to pass to the replicate function.

    >>> import jax
    >>> from typing import NamedTuple
    >>> from clairjax import sweep
    >>> class Cell(NamedTuple):
    ...     size: int
    >>> key = sweep.replicate_key(jax.random.key(0), Cell(3), 17)
    >>> key.shape
    ()
    """
    return jax.random.fold_in(cell_key(key, cell), np.uint32(replicate))


def check_cells(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    cells = tuple(cells)
    if not cells:
        raise ValueError("cells: at least one is needed, got none.")
    ids = [cell_id(cell) for cell in cells]
    for i, cell in enumerate(cells):
        if ids[i] in ids[:i] or cell in cells[:i]:
            raise ValueError(f"cells: each must differ from the others, got {cell!r} more than once.")
    return cells


def check_names(cell: Cell, outputs: Sequence[Hashable]) -> None:
    """Fields are columns of the tables and outputs are variables beside them: no name may mean two things."""
    for name in outputs:
        if not isinstance(name, str) or name.endswith(".npy"):  # in a file, `a.npy` is where `a` is
            raise ValueError(f"replicate: an output's name must be a string that does not end in .npy, got {name!r}.")
    fields = list(cell_record(cell))
    taken = [f"field {name}" for name in fields if name in outputs or name in _FIELDS_NEVER]
    taken += [f"output {name}" for name in outputs if name in _OUTPUTS_NEVER]
    if taken:
        raise ValueError(
            f"replicate: a cell's field and an output must not share a name, fields not be named "
            f"{', '.join(_FIELDS_NEVER)}, outputs not {', '.join(_OUTPUTS_NEVER)}; got {', '.join(taken)}."
        )


def default_lane_width(bytes_per_replicate: int, replicates: int, platform: str) -> int:
    """Lanes a device computes at once, from the program and the request alone, never from the free memory.

    The most that fit in 256 MiB (2 GiB on an accelerator) by `bytes_per_replicate`, at most 32 (1024). And so few that
    `replicates` make eight blocks: then up to eight devices have work and a kill loses an eighth.
    """
    limits = _CPU if platform == "cpu" else _ACCELERATOR
    fits = limits.memory // max(bytes_per_replicate, 1)
    return max(1, min(fits, limits.lanes, -(-replicates // _BLOCKS)))


def lanes_in_turn(bytes_per_replicate: int, platform: str) -> bool:
    """Whether the lanes of a block are computed one after another: on CPU, where a batch of them leaves the cache."""
    return platform == "cpu" and bytes_per_replicate > _CACHE


def blocks_for(replicates: int, lane_width: int) -> range:
    """Block b holds replicates b·lane_width, …, (b+1)·lane_width − 1, whatever computes it."""
    return range(-(-replicates // lane_width))


def replicates_in(blocks: Iterable[int], lane_width: int, replicates: int) -> int:
    """How many of those asked for are in these blocks: the last block goes beyond."""
    return sum(min(lane_width, replicates - b * lane_width) for b in blocks)


def part_of(cells: int, blocks: int, part: tuple[int, int]) -> list[range]:
    """Blocks of part i of n, for each cell: a stretch of all cells' blocks in order, so that a part meets few cells.

    Parts have equal numbers of blocks, or differ by one; where there are more parts than blocks some have none.
    """
    index, count = map(int, part)  # NumPy's integers would overflow
    first, last = (cells * blocks * bound // count for bound in (index, index + 1))
    within = lambda bound, cell: min(max(bound - cell * blocks, 0), blocks)
    return [range(within(first, cell), within(last, cell)) for cell in range(cells)]


def chunks_of(blocks: Sequence[int], devices: int) -> list[list[int]]:
    """Blocks that are computed together, one a device."""
    return [list(blocks[start : start + devices]) for start in range(0, len(blocks), devices)]


def lane_indices(chunk: Sequence[int], devices: int, lane_width: int) -> UInt32[np.ndarray, " lanes"]:
    """Replicate index of each lane. Devices without a block repeat the chunk's last one, to be dropped."""
    blocks = np.array([*chunk, *[chunk[-1]] * (devices - len(chunk))], np.int64)
    return (blocks[:, None] * lane_width + np.arange(lane_width)).astype(np.uint32).reshape(-1)


def is_key(key: Array) -> bool:
    return isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
