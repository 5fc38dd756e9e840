"""What clients are called: as they were named, or by the end of their paths."""

import os
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .. import _validate
from ._config import CONFIG
from ._folder import WEIGHTS, followed


REPORT, FIGURE, GLOBAL = "report.json", "report.png", "global"  # what lies beside the clients' results
LONGEST = 240  # bytes of a name
Location = str | os.PathLike[str]


def named_folders(folders: Sequence[Location] | Mapping[str, Location]) -> dict[str, Location]:
    """The folders by their clients' names, all different.

    **Raises:** `ValueError` for what is no path, a name that no result can have, and a folder that comes twice.
    """
    if isinstance(folders, str | os.PathLike):
        raise _validate.fail("folders", "a list of folders, one a client", repr(os.fspath(folders)))
    given = [*folders.items()] if isinstance(folders, Mapping) else [_split(each) for each in _below(folders)]
    _check_different([folder for _, folder in given])
    names = [name for name, _ in given if name is not None]
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise _validate.fail("names of clients", "texts", repr(name))
        check_name(name, "names of clients")
        if _same(name) in map(_same, names[:place]):
            raise _validate.fail("names of clients", "different, also where case does not count", f"{name!r} again")
    ends = iter(_ends([folder for name, folder in given if name is None], names))
    return {next(ends) if name is None else name: folder for name, folder in given}


def _below(folders: Sequence[Location]) -> list[Location]:
    """Of one folder that is no adapter all adapters below it, but for hidden ones and earlier results."""
    if len(folders) != 1 or not isinstance(folders[0], str | os.PathLike) or not os.path.isdir(folders[0]):
        return [*folders]
    found: list[Location] = []
    for place, inner, files in os.walk(folders[0]):
        if CONFIG in files:
            found.append(place)
        if CONFIG in files or (REPORT in files and GLOBAL in inner):
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    return found if len(found) > 1 else [*folders]


def check_name(name: str, what: str) -> None:
    """Refuse a name that the folder of a client's result cannot have."""
    if not name or _has_separator(name) or len(name.encode("utf-8", "surrogatepass")) > LONGEST:
        must_be = f"of 1 to {LONGEST} bytes, without a separator, for a result of that name"
        raise _validate.fail(what, must_be, repr(name))
    if name.casefold() in (REPORT, FIGURE, GLOBAL) or name.startswith(".") or not name.isprintable():
        must_be = f"printable, not {REPORT}, {FIGURE} or {GLOBAL}, and start with no dot, for a result of that name"
        raise _validate.fail(what, must_be, repr(name))


def _has_separator(name: str) -> bool:
    return any(separator in name for separator in (os.sep, os.altsep) if separator)


def _split(folder: Location) -> tuple[str | None, Location]:
    """`NAME=FOLDER`, unless a folder is called that, or what is before the sign is itself a path."""
    if isinstance(folder, str) and "=" in folder and not os.path.lexists(folder):
        name, _, path = folder.partition("=")
        if not _has_separator(name):
            return name, path
    return None, folder


def _check_different(folders: list[Location]) -> None:
    """Links are followed: one adapter under two names is one adapter."""
    places = [_places(folder) for folder in folders]
    for place, each in enumerate(places):
        for earlier, other in zip(folders, places[:place], strict=False):
            if each & other:
                raise ValueError(f"client folders must differ, got {folders[place]} again, the same as {earlier}.")


def _places(folder: Location) -> set[Path]:
    """The folder and its file of weights; nowhere for a path that leads nowhere."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):  # `Path("")` is the current folder
        raise _validate.fail("client folders", "paths", repr(folder))
    try:
        return {followed(folder, ""), followed(Path(folder) / WEIGHTS, "")}
    except ValueError:
        return set()


def _ends(folders: list[Location], taken: Collection[str]) -> list[str]:
    """The shortest ends of the paths that tell all apart, joined; links keep the names they were given."""
    words = [[word for word in Path(os.path.abspath(folder)).parts if not _is_root(word)] for folder in folders]
    for same in (_same, str):  # letters that differ in case alone only where nothing else differs
        for count in range(1, max(map(len, words), default=0) + 1):
            names = [_joined(each[-count:]) for each in words]
            if len({*map(same, names), *map(same, taken)}) == len(names) + len(taken):
                return names
    if not folders:
        return []
    raise _validate.fail("client folders", "of paths that tell them apart (or named, as NAME=FOLDER)", folders)


def _joined(words: list[str]) -> str:
    """A name that starts with a dot would be hidden; alone it is the folder's own."""
    return "-".join(words).lstrip("." if len(words) > 1 else "") or "root"


def _is_root(word: str) -> bool:
    return word == Path(word).anchor


def _same(name: str) -> str:
    """What file systems may take for one name."""
    return unicodedata.normalize("NFC", name).casefold()
