"""Refined adapters on the disk, with the report: all of it, or nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import _validate
from ..alignment._compress import balanced, rank_within, spectra, truncation_errors
from ..alignment._low_rank_refine import change_norms
from ._adapters import Adapters
from ._config import CONFIG, refined_fields
from ._folder import WEIGHTS, Factors, Folder
from ._plot import heat_map
from ._refine import RULE, Refinement


FORMAT = "clairjax refine 1"
REPORT, FIGURE = "report.json", "report.png"


def save(
    refinement: Refinement,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Write a refined adapter for every member, `report.json` and a heat map, `report.png`.

    `out/CLIENT` is an adapter that PEFT loads as any other: the reported keys and types, factors at scale 1 in the
    refined modules, everything else bit for bit as it was. Files are made in a hidden folder beside `out`, which
    takes the name at the end: on any error `out` is as before.

    **Arguments:** `refinement`, of `refine`. `out`: a new or empty folder; with `force` also one that an earlier call
    wrote, which is replaced. `progress`: called with a module's name before its turn.

    **Returns:** the content of `report.json`.

    **Raises:** `ValueError` for an `out` that is in use and for a rank too small to be worth writing: below the
    client's own and losing more than refining changes. `OSError` as of the disk.

    **Cost:** a module, as `clairjax.alignment.compress`; memory of one module or one client, disk twice the result.

    >>> import clairjax as cj
    >>> cj.adapters.save(refinement, "refined")  # doctest: +SKIP
    """
    out = Path(out)
    check_out(refinement.adapters, out, force)
    target = out.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        content = _fill(refinement, beside, progress)
        beside.chmod(0o755)
        _take_place(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return content


def check_out(adapters: Adapters, out: str | os.PathLike[str], force: bool) -> None:
    """Refuse a folder that `save` would refuse, before the work and not after it.

    **Arguments:** `adapters`, of `load`. `out`, `force`: as in `save`.

    **Raises:** `ValueError` for a link, a file, a folder with clients in it, and one that is in use: with `force`, one
    that holds anything but what an earlier `save` wrote.

    **Cost:** reads one list of names and `report.json`.

    >>> import clairjax as cj
    >>> cj.adapters.check_out(cj.adapters.load(folders), "refined", False)  # doctest: +SKIP
    """
    out = Path(out)
    if out.is_symlink():
        raise _validate.fail("out", "a folder of its own", f"a link, {out}")
    if out.exists() and not out.is_dir():
        raise _validate.fail("out", "a folder", f"a file, {out}")
    inside = [folder.path for folder in adapters.clients.values()]
    if any(path == out.resolve() or out.resolve() in path.parents for path in inside):
        raise _validate.fail("out", "apart from the clients' folders", out)
    if not out.exists() or not any(out.iterdir()):
        return
    if not force:
        raise _validate.fail(
            "out", "a new or empty folder (or pass force, --force, to replace an earlier result)", out
        )
    ours = _ours(out)
    if ours is None:
        raise _validate.fail("out", f"a folder that this wrote, with its {REPORT}, to be replaced", out)
    if others := sorted({entry.name for entry in out.iterdir()} - ours):
        raise _validate.fail(
            "out", "a folder with nothing but what this wrote, to be replaced", f"{others[0]} in {out}"
        )


def _ours(out: Path) -> set[str] | None:
    """The names of what an earlier call wrote there; None if none did."""
    try:
        content = json.loads((out / REPORT).read_text())
        return {REPORT, FIGURE, *content["clients"]} if content.get("format") == FORMAT else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def _take_place(beside: Path, target: Path) -> None:
    if not target.exists():
        os.rename(beside, target)
        return
    former = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    os.rename(target, former / "out")
    try:
        os.rename(beside, target)
    except BaseException:
        os.rename(former / "out", target)
        raise
    finally:
        shutil.rmtree(former, ignore_errors=True)


def _fill(refinement: Refinement, folder: Path, progress: Callable[[str], Any] | None) -> dict[str, Any]:
    parts = folder / ".parts"
    parts.mkdir()
    written: dict[str, dict[str, Any]] = {}
    for number, module in enumerate(refinement.findings):
        if progress is not None:
            progress(module)
        if len(refinement.members_of(module)) >= 2:
            written[module] = _write_part(refinement, module, parts / f"{number}.safetensors")
    places = {module: parts / f"{number}.safetensors" for number, module in enumerate(refinement.findings)}
    for name in refinement.members:
        _write_client(refinement.adapters.clients[name], folder / name, written, places)
    shutil.rmtree(parts)
    content = report(refinement, written)
    (folder / REPORT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    heat_map(refinement, folder / FIGURE)
    return content


def _write_part(refinement: Refinement, module: str, path: Path) -> dict[str, Any]:
    """Refined factors of one module, all members in one file; names are numbers, not the clients' or the module's."""
    from safetensors.numpy import save_file

    names = refinement.members_of(module)
    weights, refined = refinement.refined(module)
    found = spectra(refined)
    errors = np.asarray(truncation_errors(found.values))
    needed = max(1, int(rank_within(found.values, refinement.tolerance).max()))
    rank = needed if refinement.rank is None else refinement.rank
    at_rank = errors[:, min(rank, errors.shape[1] - 1)]
    lengths = np.linalg.norm(np.asarray(found.values), axis=1)
    changes = np.asarray(change_norms(refined, weights))
    for name, own, error, length, change in zip(names, weights.ranks.tolist(), at_rank, lengths, changes, strict=True):
        if rank < own and error * length > max(change, refinement.tolerance * length):
            why = f"at it module {module} of client {name} loses {error:.0%}, more than refining changes"
            raise ValueError(f"rank must be at least {min(own, needed)}, got {rank}: {why}.")
    factors = balanced(found, rank)
    ups, downs = np.asarray(factors.up), np.asarray(factors.down)
    tensors = {
        f"{name}.{k}": np.ascontiguousarray(side[k])
        for name, side in (("up", ups), ("down", downs))
        for k in range(len(names))
    }
    save_file(tensors, path)
    moved = np.where(lengths > 0, changes / np.where(lengths > 0, lengths, 1), 0)
    return {
        "rank": rank,
        "places": {name: k for k, name in enumerate(names)},
        "error": dict(zip(names, at_rank.tolist(), strict=True)),
        "change": dict(zip(names, moved.tolist(), strict=True)),
    }


def _write_client(folder: Folder, target: Path, written: dict[str, dict[str, Any]], parts: dict[str, Path]) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    tensors = folder.read(folder.carried)
    ranks, scales = {}, {}
    for module, place in folder.modules.items():
        mine = written.get(module, {"places": {}})
        if (number := mine["places"].get(folder.name)) is None:
            tensors |= folder.read([place.up_key, place.down_key])
            ranks[module], scales[module] = place.rank, folder.settings.scale(module)
            continue
        with safe_open(parts[module], "numpy") as file:
            up, down = file.get_tensor(f"up.{number}"), file.get_tensor(f"down.{number}")
        tensors |= {place.up_key: up.astype(_type(place)), place.down_key: down.astype(_type(place))}
        ranks[module], scales[module] = mine["rank"], 1.0
    target.mkdir()
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    fields = refined_fields(folder.settings, ranks, scales)
    (target / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _type(place: Factors) -> np.dtype:
    import ml_dtypes

    names = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}
    return np.dtype(names[place.kind])


def report(refinement: Refinement, written: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """The content of `report.json`; before anything is written, without ranks and errors of refined factors.

    **Arguments:** `refinement`, of `refine`; `written`, of `save` alone.

    **Cost:** none to speak of.

    >>> import clairjax as cj
    >>> cj.adapters.report(refinement)["clients"]["hospital-3"]["verdict"]  # doctest: +SKIP
    'contaminated'
    """
    modules = {}
    for module, each in refinement.findings.items():
        mine = (written or {}).get(module)
        clients = {
            name: {"member": name in each.members, "votes": each.votes[name], "distance": each.distance[name]}
            | ({} if mine is None or name not in mine["error"] else {"truncation_error": mine["error"][name]})
            | ({"copy_of": each.copies[name]} if name in each.copies else {})
            | ({} if mine is None or name not in mine["change"] else {"relative_change": mine["change"][name]})
            for name in each.clients
        }
        modules[module] = {
            "shape": list(each.shape),
            "shared_rank": each.rank,
            "threshold": each.threshold,
            "status": each.status,
            "refined_rank": None if mine is None else mine["rank"],
            "clients": clients,
        }
    verdicts = {
        name: {
            "verdict": each.verdict,
            "modules": each.modules,
            "voted_out": list(each.voted_out),
            "reason": each.reason,
            "folder": str(refinement.adapters.clients[name].path),
        }
        for name, each in refinement.verdicts.items()
    }
    return {
        "format": FORMAT,
        "rule": RULE,
        "tolerance": refinement.tolerance,
        "rank": refinement.rank,
        "shrink": refinement.shrink,
        "clients": verdicts,
        "modules": modules,
        "notices": list(refinement.notices),
    }
