"""The folder that results go to, looked at before the work."""

import os
from pathlib import Path

from .. import _validate
from ._adapters import Adapters
from ._folder import followed
from ._names import check_name
from ._place import is_report, refusal


LONGEST = 240  # bytes of a name; that of the hidden folder beside it is longer


def check_out(adapters: Adapters, out: str | os.PathLike[str], force: bool) -> None:
    """Refuse a folder that `save` would refuse, before the work and not after it.

    **Args:** `adapters`, of `load`; `out`, `force`, as in `save`.

    **Raises:** `ValueError` for

    - a link or a file;
    - a folder around a client's folder or inside it;
    - a folder that cannot be made;
    - a folder in use. With `force` that is a folder with anything but what an earlier `save` wrote;
    - a client whose name cannot be that of a folder beside the report.

    **Cost:** lists the files of `out` and reads `report.json`.

    >>> import clairjax as cj
    >>> cj.adapters.check_out(cj.adapters.load(folders), "refined", False)  # doctest: +SKIP
    """
    target, out = followed(out, "out"), Path(out)
    if len(os.fsencode(target.name)) > LONGEST:
        raise _validate.fail("out", f"of a name of at most {LONGEST} bytes", f"{target.name[:20]}…")
    above = next(parent for parent in target.parents if os.path.lexists(parent))
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise _validate.fail("out", "where a folder can be made", f"{out}: {above} is none to write in")
    for name, folder in adapters.clients.items():
        _check_name(name, folder.path)
        if target.is_relative_to(folder.path) or folder.path.is_relative_to(target):
            raise _validate.fail("out", "apart from the clients' folders", out)
    if why := refusal(out, force):
        raise why


def check_report(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that is no report of an earlier call, before the work: a dry run's report replaces nothing else.

    **Returns:** the path.

    **Raises:** `ValueError` for such a file, and for a file that cannot be made.

    **Cost:** reads the file.

    >>> import clairjax as cj
    >>> cj.adapters.check_report("report.json").name
    'report.json'
    """
    target = Path(path)
    if os.path.lexists(target) and (target.is_symlink() or not is_report(target)):
        raise _validate.fail("report", "a new file, or the report of an earlier call", path)
    if not (target.parent.is_dir() and os.access(target.parent, os.W_OK)):
        raise _validate.fail("report", "where a file can be made", path)
    return target


def _check_name(name: str, path: Path) -> None:
    """The result's folders have the clients' names, and the report has their paths."""
    check_name(name, "names of client folders")
    if not str(path).isprintable():
        raise _validate.fail("paths of client folders", "printable, for the report", repr(str(path)))
