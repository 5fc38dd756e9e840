"""Refined adapters on the disk, with the report: all of it, or nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._config import CONFIG, refined_fields
from ._folder import WEIGHTS, Folder
from ._names import FIGURE, REPORT
from ._out import check_out
from ._part import write_part
from ._place import take_place
from ._plot import heat_map
from ._refine import Refinement
from ._report import report
from ._tensors import read, write


def save(
    refinement: Refinement,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Write a refined adapter for every member, `report.json` and a heat map, `report.png`.

    `out/CLIENT` is an adapter that PEFT loads as any other: the reported keys and types, factors at scale 1 in the
    refined modules, everything else bit for bit as it was. A `truncation_error` in the report is of what is in the
    file, rounded to its type. Files are made in a hidden folder beside `out`, which takes the name at the end: on any
    error `out` is as before. What appears in `out` meanwhile stays; with `force` a result of another call is replaced,
    and nothing else. The new result is then kept beside it as `OUT.*.kept`, and the error says so. A call that is
    killed leaves the hidden folder, `.OUT.*.tmp`; killed in the moment between moving a former result away and taking
    its name, it leaves the former one as `.OUT.*.old/out`.

    **Arguments:** `refinement`, of `refine`. `out`: a new or empty folder; with `force` also one that an earlier call
    wrote, which is replaced. `progress`: called with a module's name before its turn.

    **Returns:** the content of `report.json`.

    **Raises:** `ValueError` for an `out` that is in use, at the start or at the end, and for a rank too small to be
    worth writing: below the client's own and losing more than refining changes; as `check_out`. `OSError` as of the
    disk.

    **Cost:** a module, as `clairjax.alignment.compress`; memory of one module or one client, disk twice the result.

    >>> import clairjax as cj
    >>> cj.adapters.save(refinement, "refined")  # doctest: +SKIP
    """
    check_out(refinement.adapters, out, force)
    target = Path(out).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        content = _fill(refinement, beside, progress)
        beside.chmod(0o755)
        take_place(beside, target, force)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return content


def _fill(refinement: Refinement, folder: Path, progress: Callable[[str], Any] | None) -> dict[str, Any]:
    parts = folder / ".parts"
    parts.mkdir()
    written: dict[str, dict[str, Any]] = {}
    for number, module in enumerate(refinement.findings):
        if progress is not None:
            progress(module)
        if len(refinement.members_of(module)) >= 2:
            written[module] = write_part(refinement, module, parts / f"{number}.safetensors")
    places = {module: parts / f"{number}.safetensors" for number, module in enumerate(refinement.findings)}
    for name in refinement.members:
        _write_client(refinement.adapters.clients[name], folder / name, written, places)
    shutil.rmtree(parts)
    content = report(refinement, written)
    (folder / REPORT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    heat_map(refinement, folder / FIGURE)
    return content


def _write_client(folder: Folder, target: Path, written: dict[str, dict[str, Any]], parts: dict[str, Path]) -> None:
    tensors = folder.read(folder.carried)
    ranks, scales = {}, {}
    for module, place in folder.modules.items():
        mine = written.get(module, {"places": {}})
        if (number := mine["places"].get(folder.name)) is None:
            tensors |= folder.read([place.up_key, place.down_key])
            ranks[module], scales[module] = place.rank, folder.settings.scale(module)
            continue
        up, down = read(parts[module], folder.name, [f"up.{number}", f"down.{number}"]).values()
        tensors |= {place.up_key: up, place.down_key: down}
        ranks[module], scales[module] = mine["rank"], 1.0
    target.mkdir()
    write(tensors, target / WEIGHTS, metadata={"format": "pt"})
    fields = refined_fields(folder.settings, ranks, scales)
    (target / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
