"""A finished result takes the name that it was made for: a free one, an empty folder's, or an earlier result's.

Whatever else has the name, or takes it meanwhile, stays. The system refuses to rename onto a folder that is not empty.
What is to be replaced is set aside and looked at. Only then is it removed, file by known file.
"""

import errno
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .. import _validate
from ._names import REPORT


FORMAT = "clairjax refine 2"
IN_USE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def refusal(out: Path, force: bool, called: Path | None = None) -> ValueError | None:
    """Why `out`, or what was `called` so, must stay; None if it is free, empty or, with `force`, an earlier result."""
    if not _in_use(out):
        return None
    called = called or out
    if out.is_symlink():
        return _validate.fail("out", "a folder of its own", f"a link, {called}")
    if not out.is_dir():
        return _validate.fail("out", "a folder", f"a file, {called}")
    if not force:
        return _not_free(called)
    ours = _ours(out)
    if ours is None:
        return _validate.fail("out", f"a folder that this wrote, with its {REPORT}, to be replaced", called)
    if others := sorted(_leaves(out) - ours):
        must_be = "a folder with nothing but what this wrote, to be replaced"
        return _validate.fail("out", must_be, f"{others[0]} in {called}")
    return None


def _not_free(out: Path) -> ValueError:
    must_be = "a new or empty folder (or pass force, --force, to replace an earlier result)"
    return _validate.fail("out", must_be, out)


def take_place(beside: Path, target: Path, force: bool) -> None:
    """Give `target`'s name to `beside`, or tell where it is kept.

    **Raises:** `ValueError` if something has the name that is not to be replaced, also if it came a moment ago.
    """
    try:
        _take(beside, target, force)
    except ValueError as error:
        kept = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".kept", dir=target.parent))
        _rename(beside, kept)
        raise ValueError(f"{error} The new result is kept in {kept}.") from None


def _take(beside: Path, target: Path, force: bool) -> None:
    if not _in_use(target) and _rename(beside, target):
        return
    # Twice: between another call's two renames nothing is here.
    if (why := refusal(target, force)) and (why := refusal(target, force)):
        raise why
    if not force:
        raise _not_free(target)
    former = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    aside = former / "out"
    try:
        with suppress(FileNotFoundError):  # another call was faster
            os.rename(target, aside)
        if why := refusal(aside, force, target):
            raise why
        _take(beside, target, force)
    except BaseException as error:
        back = not os.path.lexists(aside) or _rename(aside, target)
        with suppress(OSError):  # unless something is still in it
            former.rmdir()
        if isinstance(error, ValueError) and not back:
            raise ValueError(f"{error} What was there before is in {aside}.") from None
        raise
    with suppress(OSError):
        _remove(aside)
    with suppress(OSError):
        former.rmdir()


def _in_use(target: Path) -> bool:
    if target.is_dir() and not target.is_symlink():
        with suppress(FileNotFoundError):
            return any(target.iterdir())
    return os.path.lexists(target)


def _rename(folder: Path, target: Path) -> bool:
    """Whether it could be done: only onto a free name or an empty folder, at once."""
    try:
        if os.name == "nt":  # not even onto an empty one
            with suppress(OSError):
                target.rmdir()
        os.rename(folder, target)
    except OSError as error:
        if error.errno in IN_USE:
            return False
        raise
    return True


def _remove(out: Path) -> None:
    """An earlier result, and nothing that came into it since it was looked at."""
    for leaf in _leaves(out) & (_ours(out) or set()):
        (out / leaf).unlink()
    for folder in (*out.iterdir(), out):
        folder.rmdir()


def _ours(out: Path) -> set[str] | None:
    """The files that an earlier call wrote there; None if none did."""
    try:
        content = json.loads((out / REPORT).read_text(encoding="utf-8"))
        return {*content["files"]} if content["format"] == FORMAT else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def is_report(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _leaves(out: Path) -> set[str]:
    """Files, links and empty folders, by their paths from `out`."""
    entries = [Path(folder) / name for folder, folders, files in os.walk(out) for name in (*folders, *files)]
    leaves = (each for each in entries if each.is_symlink() or not each.is_dir() or not any(each.iterdir()))
    return {each.relative_to(out).as_posix() for each in leaves}
