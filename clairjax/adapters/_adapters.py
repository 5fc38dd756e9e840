"""The adapters of many clients: loaded together, compared module by module."""

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .. import _validate
from .._validate import LEAST
from ..alignment import LowRankMatrices
from ._agree import other_bases, other_shapes
from ._folder import Folder, State, faulty, followed, read_folder
from ._names import named_folders
from ._renamed import apart


@dataclass(frozen=True)
class Adapters:
    """Clients over one base model. Numbers stay on the disk until a module is asked for.

    - `clients`: by name, those that have a `fault` and no modules among them; `modules`: of each, which clients have
      it, in their order;
    - `skipped`: modules that too few clients have, kept as they are; `notices`: what a reader should know;
    - `renamed`: of clients that share no module with most, how their modules' names differ.
    """

    clients: dict[str, Folder]
    modules: dict[str, tuple[str, ...]]
    skipped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)

    def factors(self, module: str, clients: Sequence[str] | None = None, count: int = 0) -> LowRankMatrices:
        """One module of clients that have it, in float32 unless the files are float64; with zeros up to `count`."""
        chosen = self.modules[module] if clients is None else clients
        found = [self.clients[name].factors(module) for name in chosen]
        ups, downs, scales = (list(each) for each in zip(*found, strict=True))
        dtype = np.result_type(*ups, *downs)
        more = count - len(ups)
        ups += [np.zeros_like(ups[0])] * more
        downs += [np.zeros_like(downs[0])] * more
        scales += [1.0] * more
        return LowRankMatrices(
            [up.astype(dtype) for up in ups], [down.astype(dtype) for down in downs], np.asarray(scales, dtype)
        )


def load(
    folders: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
    *,
    exclude: Collection[str] = (),
    strict: bool = False,
    same_base: bool = False,
) -> Adapters:
    """Open the adapters of at least three clients, as PEFT's `save_pretrained` writes them.

    Each folder holds `adapter_config.json` and `adapter_model.safetensors`. Everything is checked but the numbers; no
    pickle is ever read. A client with a fault is unusable, for a reason that is told, and the others are loaded. It is
    a fault to adapt another base model than most, or a module in another shape.

    **Args:**

    - `folders`, one a client. A mapping of names to folders, or `NAME=FOLDER`, names a client. Otherwise its name is
      the shortest end of its path that no other has, joined by hyphens.
      One folder without an adapter of its own stands for all adapters below it, but for those in other adapters.
    - `exclude`: names of clients to leave out.
    - `strict`: refuse everything if anything is wrong with one client.
    - `same_base`: take the base models as the same, whatever they are called. Paths are in any case, unless `strict`,
      if their last parts are the same.

    **Returns:** `Adapters`.

    **Raises:** `ImportError` without safetensors, and `ValueError` for

    - folders that are no paths or come twice, and names that no result can have;
    - fewer than three usable clients, with the reasons;
    - two base models, or shapes of a module, that are the most common;
    - if `strict`, any fault, naming the client, and the module or the field. A fault is a folder that is no adapter, a
      variant whose update is not scale · B · A, tensors of unknown names, another base model or shape. A file that
      cannot be read is an `OSError`.

    **Cost:** reads the headers only.

    >>> import clairjax as cj
    >>> cj.adapters.load(["one", "one"])
    Traceback (most recent call last):
    ValueError: client folders must differ, got one again, the same as one.
    """
    _validate.flag(strict, "strict")
    _validate.flag(same_base, "same_base")
    named = named_folders(folders)
    if unknown := [name for name in exclude if name not in named]:
        raise _validate.fail("exclude", f"among the clients, {', '.join(named)}", repr(unknown[0]))
    named = {name: folder for name, folder in named.items() if name not in exclude}
    _validate.enough_clients(len(named), "folders")
    clients = {name: _read(folder, name, strict) for name, folder in named.items()}
    notices = [f"client {name}: left out, as it was said" for name in exclude]
    return compared(clients, notices, strict=strict, same_base=same_base)


def from_states(states: Mapping[str, State]) -> Adapters:
    """Adapters that are in memory, as `load` gives those in folders; over one base model, whatever it is called.

    **Args:** `states`, of `state`, by their clients' names; at least three.

    **Returns:** `Adapters`.

    **Raises:** `ValueError` for fewer than three clients, and for shapes of a module of which two are the most common.

    **Cost:** looks at no number.

    >>> import clairjax as cj
    >>> cj.adapters.from_states({})
    Traceback (most recent call last):
    ValueError: states must be from at least 3 clients, for a majority to be defined, got 0.
    """
    _validate.enough_clients(len(states), "states")
    clients: dict[str, Folder] = {name: replace(each, name=name) for name, each in states.items()}
    return compared(clients, [], strict=False, same_base=True)


def compared(clients: dict[str, Folder], left_out: list[str], *, strict: bool, same_base: bool) -> Adapters:
    """Clients that were read, wherever: who can take part, and in which modules."""
    other, notices = other_bases(_usable(clients), same=same_base, strict=strict)
    clients = _without(clients, other)
    clients = _without(clients, other_shapes(_usable(clients), least=LEAST, strict=strict))
    usable = _usable(clients)
    everywhere: dict[str, tuple[str, ...]] = {}
    for folder in usable:
        for module in folder.modules:
            everywhere[module] = (*everywhere.get(module, ()), folder.name)
    modules = {module: having for module, having in everywhere.items() if len(having) >= LEAST}
    skipped = {module: having for module, having in everywhere.items() if len(having) < LEAST}
    renamed = apart({folder.name: folder.modules for folder in usable})
    if not modules:
        why = "".join(f" Of client {name}, {how}." for name, how in renamed.items())
        raise ValueError(f"some module must be adapted by at least {LEAST} clients, got none.{why}")
    notices += left_out
    notices += [f"client {name}: {how}; so it is not compared with them" for name, how in renamed.items()]
    notices += _notices(usable, modules, skipped)
    return Adapters(clients, modules, skipped, tuple(notices), renamed)


def _read(folder: str | os.PathLike[str], name: str, strict: bool) -> Folder:
    path = Path(folder)
    try:
        return read_folder(path := followed(folder, "client folders"), name)
    except (ValueError, OSError) as error:
        if strict:
            raise
        why = f"client {name}: {error}" if isinstance(error, OSError) else f"{error}"
        return faulty(name, path, why)


def _usable(clients: dict[str, Folder]) -> list[Folder]:
    usable = [folder for folder in clients.values() if not folder.fault]
    if len(usable) < LEAST:
        raise too_few(len(usable), {name: folder.fault for name, folder in clients.items() if folder.fault})
    return usable


def _without(clients: dict[str, Folder], reasons: dict[str, str]) -> dict[str, Folder]:
    """These clients cannot take part."""
    return {
        name: faulty(name, folder.path, reasons[name]) if name in reasons else folder
        for name, folder in clients.items()
    }


def too_few(usable: int, reasons: dict[str, str]) -> ValueError:
    why = "; ".join(reason if f"client {name}" in reason else f"{name}: {reason}" for name, reason in reasons.items())
    return ValueError(f"at least {LEAST} clients must be usable, got {usable} ({why}).")


def _notices(
    usable: list[Folder], modules: dict[str, tuple[str, ...]], skipped: dict[str, tuple[str, ...]]
) -> list[str]:
    clients = {folder.name: folder for folder in usable}
    notices = [
        f"client {name}: {len(folder.carried)} tensor(s) that are not LoRA's go through untouched, "
        f"as {folder.carried[0]}"
        for name, folder in clients.items()
        if folder.carried
    ]
    lacking = {module: tuple(name for name in clients if name not in having) for module, having in modules.items()}
    notices += [f"{where}: compared without {', '.join(names)}" for names, where in _where(lacking)]
    ranks = [sorted(clients[name].modules[module].rank for name in having) for module, having in modules.items()]
    if mixed := [(each[0], each[-1]) for each in ranks if each[-1] >= 2 * each[0]]:
        least, most = min(low for low, _ in mixed), max(high for _, high in mixed)
        notices.append(
            f"ranks from {least} to {most} in {len(mixed)} module(s): clients are compared by their products B A, "
            "over the overlap of their row spaces, so that a rank alone sets nobody apart"
        )
    return notices + [
        f"{where}: only {', '.join(names)} adapt it, so it is kept as it is" for names, where in _where(skipped)
    ]


def _where(modules: Mapping[str, tuple[str, ...]]) -> list[tuple[tuple[str, ...], str]]:
    """Names of clients, and of which modules: those of the same names together."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for module, names in modules.items():
        groups[names].append(module)
    return [
        (names, f"module {first}" if not others else f"module {first} and {len(others)} more")
        for names, (first, *others) in groups.items()
        if names
    ]
