"""The folder that results go to: which may be taken, and how it is taken at once."""

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from .. import _validate
from ._adapters import Adapters
from ._config import CONFIG
from ._folder import WEIGHTS, followed
from ._names import FIGURE, REPORT, check_name
from ._verdict import MEMBER


FORMAT = "clairjax refine 1"
LONGEST = 240  # bytes of a name, which a hidden folder's beside it adds to


def check_out(adapters: Adapters, out: str | os.PathLike[str], force: bool) -> None:
    """Refuse a folder that `save` would refuse, before the work and not after it.

    **Arguments:** `adapters`, of `load`. `out`, `force`: as in `save`.

    **Raises:** `ValueError` for a link, a file, a folder around a client's or inside one, one that cannot be made, and
    one that is in use: with `force`, one that holds anything but what an earlier `save` wrote. Also for a client whose
    name cannot be that of a folder beside the report.

    **Cost:** lists the files of `out` and reads `report.json`.

    >>> import clairjax as cj
    >>> cj.adapters.check_out(cj.adapters.load(folders), "refined", False)  # doctest: +SKIP
    """
    target, out = followed(out, "out"), Path(out)
    if out.is_symlink():
        raise _validate.fail("out", "a folder of its own", f"a link, {out}")
    if out.exists() and not out.is_dir():
        raise _validate.fail("out", "a folder", f"a file, {out}")
    if len(os.fsencode(target.name)) > LONGEST:
        raise _validate.fail("out", f"of a name of at most {LONGEST} bytes", f"{target.name[:20]}…")
    above = next(parent for parent in target.parents if os.path.lexists(parent))
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise _validate.fail("out", "where a folder can be made", f"{out}: {above} is none to write in")
    for name, folder in adapters.clients.items():
        _check_name(name, folder.path)
        if target.is_relative_to(folder.path) or folder.path.is_relative_to(target):
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
    if others := sorted(_leaves(out) - ours):
        raise _validate.fail(
            "out", "a folder with nothing but what this wrote, to be replaced", f"{others[0]} in {out}"
        )


def _check_name(name: str, path: Path) -> None:
    """The result's folders have the clients' names, and the report has their paths."""
    check_name(name, "names of client folders")
    if not str(path).isprintable():
        raise _validate.fail("paths of client folders", "printable, for the report", repr(str(path)))


def _ours(out: Path) -> set[str] | None:
    """The files that an earlier call wrote there; None if none did."""
    try:
        content = json.loads((out / REPORT).read_text(encoding="utf-8"))
        members = [name for name, client in content["clients"].items() if client["verdict"] == MEMBER]
        files = {f"{name}/{file}" for name in members for file in (CONFIG, WEIGHTS)}
        return {REPORT, FIGURE, *files} if content.get("format") == FORMAT else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def _leaves(out: Path) -> set[str]:
    """Files, links and empty folders, by their paths from `out`."""
    entries = [Path(folder) / name for folder, folders, files in os.walk(out) for name in (*folders, *files)]
    leaves = (each for each in entries if each.is_symlink() or not each.is_dir() or not any(each.iterdir()))
    return {each.relative_to(out).as_posix() for each in leaves}


def take_place(beside: Path, target: Path) -> None:
    """Give `target`'s name to `beside`. A former `target` is `.NAME.*.old/out` until `beside` has the name."""
    if not target.exists():
        os.rename(beside, target)
        return
    former = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    try:
        os.rename(target, former / "out")
        try:
            os.rename(beside, target)
        except BaseException:
            os.rename(former / "out", target)
            raise
    except BaseException:
        with suppress(OSError):  # unless the result is still in it
            former.rmdir()
        raise
    shutil.rmtree(former, ignore_errors=True)
