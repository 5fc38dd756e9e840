"""What clients must have in common to be compared: the base model, and the shapes of modules. The most common wins."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from ._folder import Folder


SAY_SO = "If they are, same_base=True (--same-base) says so."
Base = tuple[str | None, str | None]  # name and revision


def other_bases(clients: list[Folder], *, same: bool, strict: bool) -> tuple[dict[str, str], list[str]]:
    """Who adapts another base model than most, and which; and notices of what was taken as the same.

    A slash at the end and the revision's default change nothing. Paths that end alike are taken as the same, since
    clients keep their copies where they like; not if `strict`. `same` takes all as the same.

    **Raises:** `ValueError` where two are the most common; if `strict`, where two differ.
    """
    spelled = {folder.name: _base(folder) for folder in clients}
    sorts: dict[str, Any] = dict.fromkeys(spelled) if same else spelled if strict else _by_last_words(spelled)
    usual, tied = _usual(sorts.values())
    (place, *_), *ties = ([name for name in sorts if sorts[name] == each] for each in (usual, *tied))
    odd = {name: _unlike(spelled, place, name) for name in sorts if sorts[name] != usual}
    if strict and odd:
        first, *others = sorts
        raise ValueError(_unlike(spelled, first, next(name for name in others if sorts[name] != sorts[first])))
    if ties:
        raise ValueError(f"{_unlike(spelled, place, ties[0][0])} {SAY_SO}")
    spellings = {spelled[name]: name for name in reversed(sorts) if name not in odd}
    listed = ", ".join(f"{_words(base)} ({name})" for base, name in reversed(spellings.items()))
    notice = f"base models are taken as the same{', as was said' if same else ''}: {listed}"
    return {name: f"{why} {SAY_SO}" for name, why in odd.items()}, [notice] if len(spellings) > 1 else []


def _base(folder: Folder) -> Base:
    name, revision = folder.settings.base_model
    return re.sub(r"(?<=.)[/\\]+$", "", name) if name else None, revision or "main"


def _by_last_words(spelled: dict[str, Base]) -> dict[str, Base]:
    """A path's last word stands for it, or the one name on the hub that ends so: there, owners count, and no case."""
    hub = {name.casefold() for name, _ in spelled.values() if name and not _is_path(name)}
    ends = Counter(name.split("/")[-1] for name in hub)

    def known(name: str) -> str:
        last = re.split(r"[/\\]", name)[-1].casefold()
        if not _is_path(name):
            return name.casefold()
        return next(each for each in hub if each.split("/")[-1] == last) if ends[last] == 1 else f"…/{last}"

    return {client: (name and known(name), revision) for client, (name, revision) in spelled.items()}


def _is_path(name: str) -> bool:
    """`OWNER/MODEL` is a name on the hub, and so is `MODEL`."""
    first, *rest = re.split(r"[/\\]", name)
    return len(rest) > 1 or first in ("", ".", "..", "~") or ":" in first or "\\" in name


def _unlike(spelled: dict[str, Base], first: str, other: str) -> str:
    got = " and ".join(f"{_words(spelled[name])} ({name})" for name in (first, other))
    return f"base models must be the same, got {got}."


def _words(base: Base) -> str:
    name, revision = base
    return f"{name}" if revision == "main" else f"{name} at revision {revision}"


def other_shapes(clients: list[Folder], *, least: int, strict: bool) -> dict[str, str]:
    """Who has a module in another shape than most, and which; of modules of at least so many clients.

    **Raises:** `ValueError` where two are the most common among those who are left; if `strict`, where two differ.
    """
    odd: dict[str, str] = {}
    while True:
        having: dict[str, list[Folder]] = defaultdict(list)
        for folder in clients:
            for module in folder.modules if folder.name not in odd else ():
                having[module].append(folder)
        found: dict[str, str] = {}
        ties: list[str] = []
        for module, folders in having.items():
            shapes = [folder.modules[module].matrix for folder in folders]
            usual, tied = (shapes[0], []) if strict else _usual(shapes)
            first, others = folders[shapes.index(usual)], zip(folders, shapes, strict=True)
            why = {each.name: _other_shape(module, first, each) for each, shape in others if shape != usual}
            if strict or (tied and len(folders) >= least):
                ties += why.values()
            elif not tied:
                found = why | found
        if not found:
            break
        odd = found | odd
    if ties:
        raise ValueError(ties[0])
    return odd


def _other_shape(module: str, first: Folder, other: Folder) -> str:
    expected, got = (folder.modules[module].matrix for folder in (first, other))
    return (
        f"module {module} must be of one shape (out, in), "
        f"got {expected} from client {first.name} and {got} from client {other.name}."
    )


def _usual(values: Iterable[Any]) -> tuple[Any, list[Any]]:
    """The most common value, and others that are as common."""
    (usual, times), *others = Counter(values).most_common()
    return usual, [value for value, count in others if count == times]
