"""The adapters of many clients: loaded together, compared module by module."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import _validate
from ..alignment import LowRankMatrices
from ._folder import Folder, client_names, read_folder, resolved


LEAST = 3  # clients, for a majority to be defined


@dataclass(frozen=True)
class Adapters:
    """Clients over one base model. Numbers stay on the disk until a module is asked for.

    - `clients`: by name; `modules`: of each, which clients have it, in their order;
    - `skipped`: modules that too few clients have, kept as they are; `notices`: what a reader should know.
    """

    clients: dict[str, Folder]
    modules: dict[str, tuple[str, ...]]
    skipped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def factors(self, module: str, clients: Sequence[str] | None = None) -> LowRankMatrices:
        """One module of the clients that have it, in float32 unless the files are float64."""
        chosen = self.modules[module] if clients is None else clients
        ups, downs, scales = zip(*(self.clients[name].factors(module) for name in chosen), strict=True)
        dtype = np.result_type(*ups, *downs)
        return LowRankMatrices(
            [up.astype(dtype) for up in ups], [down.astype(dtype) for down in downs], np.asarray(scales, dtype)
        )


def load(folders: Sequence[str | os.PathLike[str]]) -> Adapters:
    """Open the adapters of at least three clients, as PEFT's `save_pretrained` writes them.

    Each folder holds `adapter_config.json` and `adapter_model.safetensors`. Everything is checked but the numbers;
    no pickle is ever read.

    **Arguments:** `folders`, one a client.

    **Returns:** `Adapters`.

    **Raises:** `ValueError` naming the client, and the module or the field: for a folder that is no adapter, a
    variant whose update is not scale · B · A, tensors of unknown names, other base models, shapes that differ.
    `ImportError` without safetensors.

    **Cost:** reads the headers only.

    >>> import clairjax as cj
    >>> cj.adapters.load(["one", "one"])
    Traceback (most recent call last):
    ValueError: client folders must differ, got one again, the same as one.
    """
    if isinstance(folders, str | os.PathLike):
        raise _validate.fail("folders", "a list of folders, one a client", repr(os.fspath(folders)))
    paths = resolved(list(folders))
    if len(paths) < LEAST:
        raise ValueError(
            f"folders must be from at least {LEAST} clients, for a majority to be defined, got {len(paths)}."
        )
    names = client_names(paths)
    clients = {name: read_folder(path, name) for path, name in zip(paths, names, strict=True)}
    _check_one_base(clients)
    everywhere: dict[str, tuple[str, ...]] = {}
    for name, folder in clients.items():
        for module in folder.modules:
            everywhere[module] = (*everywhere.get(module, ()), name)
    for module, having in everywhere.items():
        _check_one_shape(module, {name: clients[name] for name in having})
    modules = {module: having for module, having in everywhere.items() if len(having) >= LEAST}
    skipped = {module: having for module, having in everywhere.items() if len(having) < LEAST}
    if not modules:
        raise ValueError(f"some module must be adapted by at least {LEAST} clients, got none.")
    return Adapters(clients, modules, skipped, tuple(_notices(clients, modules, skipped)))


def _check_one_base(clients: dict[str, Folder]) -> None:
    (first, *others) = clients.values()
    for other in others:
        if other.settings.base_model != first.settings.base_model:
            expected, got = _spelled(first), _spelled(other)
            raise ValueError(f"base models must be the same, got {expected} ({first.name}) and {got} ({other.name}).")


def _spelled(folder: Folder) -> str:
    name, revision = folder.settings.base_model
    return f"{name}" if revision is None else f"{name} at revision {revision}"


def _check_one_shape(module: str, having: dict[str, Folder]) -> None:
    (first, *others) = having.values()
    for other in others:
        expected, got = first.modules[module].matrix, other.modules[module].matrix
        if got != expected:
            raise ValueError(
                f"module {module} must be of one shape (out, in), "
                f"got {expected} from client {first.name} and {got} from client {other.name}."
            )


def _notices(
    clients: dict[str, Folder], modules: dict[str, tuple[str, ...]], skipped: dict[str, tuple[str, ...]]
) -> list[str]:
    notices = [
        f"client {name}: {len(folder.carried)} tensor(s) that are not LoRA's go through untouched, "
        f"as {folder.carried[0]}"
        for name, folder in clients.items()
        if folder.carried
    ]
    for module, having in modules.items():
        if missing := [name for name in clients if name not in having]:
            notices.append(f"module {module}: the vote is over {len(having)} clients, without {', '.join(missing)}")
        ranks = [clients[name].modules[module].rank for name in having]
        if max(ranks) >= 2 * min(ranks):
            notices.append(
                f"module {module}: ranks from {min(ranks)} to {max(ranks)}; a larger rank alone sets a client further "
                "apart, so a contaminated one stands out less"
            )
    for module, having in skipped.items():
        notices.append(f"module {module}: only {', '.join(having)} adapt it, so it is kept as it is")
    return notices
