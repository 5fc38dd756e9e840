"""Clients that come late, against what `save` wrote: the others' adapters are not read again."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _validate
from ..alignment import Reference
from ._adapters import Adapters
from ._agree import other_bases, other_shapes
from ._folder import Folder, faulty, read_folder
from ._names import GLOBAL, REPORT, named_folders
from ._numbers import examine
from ._place import is_report
from ._products import inner_products, rows_of, spectrum
from ._refine import CLIP
from ._verdict import IDLE, UNDECIDED, UNUSABLE, ClientVerdict, said


RULE = (
    "by the cosine with the global adapter and by the size, relative to the members of the result. Row spaces and "
    "copies take the other clients' adapters"
)


def compare(
    out: str | os.PathLike[str],
    folders: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
    *,
    same_base: bool = False,
) -> dict[str, ClientVerdict]:
    """Say of clients that came late how they stand to a stored result.

    A late client's update is compared with `out/global`, as each member's was with the median of the other members,
    which `report.json` has. Its verdict is *member*, *rescaled*, *sign-flipped*, *unrelated* or *undecided*, as of
    `refine`; or *idle* or *unusable*. Other row spaces and copies are not seen: for them run `refine` again.

    **Args:**

    - `out`: what `save` of this version wrote.
    - `folders`, of the late clients, one or more, as in `load`.
    - `same_base`: as in `load`.

    **Returns:** the verdicts by client.

    **Raises:** `ValueError` for an `out` that `save` did not write or in which nobody has company; for folders as
    `load`. `ImportError` without safetensors.

    **Source:** not in the papers.

    **Cost:** reads `out/global` and each late client once. Nothing is compiled.

    >>> import clairjax as cj
    >>> cj.adapters.compare("refined", ["hospital-9"])["hospital-9"].verdict  # doctest: +SKIP
    'member'
    """
    _validate.flag(same_base, "same_base")
    lengths, reference = _stored(Path(out))
    shared = _global(Path(out), lengths)
    clients = {name: _read(folder, name, shared, same_base) for name, folder in named_folders(folders).items()}
    numbers = examine(Adapters(clients, {}))
    verdicts = {}
    for name, client in clients.items():
        if name in numbers.apart:
            word = UNUSABLE if name in numbers.unusable else IDLE
            verdicts[name] = ClientVerdict(name, word, numbers.apart[name])
        else:
            verdicts[name] = _verdict(client, shared, lengths, numbers.zeros.get(name, []), reference)
    return verdicts


def comparison(verdicts: Mapping[str, ClientVerdict], out: str | os.PathLike[str]) -> dict[str, Any]:
    """What `clairjax compare` writes and prints, of the verdicts of `compare`.

    **Cost:** none to speak of.

    >>> import clairjax as cj
    >>> cj.adapters.comparison({}, "refined")["clients"]
    {}
    """
    clients = {
        name: {field: value for field, value in vars(each).items() if field != "client"}
        for name, each in verdicts.items()
    }
    return {"against": os.fspath(out), "rule": RULE, "clients": json.loads(json.dumps(clients))}


def _stored(out: Path) -> tuple[dict[str, float], Reference]:
    """The usual norm of each module, and how the members stand."""
    if not is_report(out / REPORT):
        raise _validate.fail("out", f"a folder that save wrote, with its {REPORT}", out)
    found: dict[str, Any] = json.loads((out / REPORT).read_text(encoding="utf-8"))
    if found.get("global", {}) is None:
        raise _validate.fail("out", "a result with members who have a module in common", f"{out}, which has none")
    try:
        lengths, members = _numbers(found)
    except (AttributeError, KeyError, TypeError, ValueError):  # of an earlier version, or damaged
        got = f"{out}, whose {REPORT} lacks numbers that compare needs"
        raise _validate.fail("out", "a result of this version: run refine again", got) from None
    return lengths, Reference.of(*members)


def _numbers(found: Mapping[str, Any]) -> tuple[dict[str, float], np.ndarray]:
    """Usual norms by module; agreement, overlap and size of each member who has a module of the global adapter."""
    lengths = {name: float(each["usual_norm"]) for name, each in found["modules"].items() if "usual_norm" in each}
    sizes = {name: found["clients"][name]["size"] or 1.0 for name in found["global"]["clients"]}
    rows = [(each["agreement"], each["overlap"], sizes[name]) for name, each in found["global"]["clients"].items()]
    members = np.array([row for row in rows if row[1] != 0], float).reshape(-1, 3).T
    positive = np.array([*lengths.values(), *members[1], *members[2]])
    if not (lengths and members.size and np.isfinite(members).all() and np.all(positive > 0)):
        raise ValueError("numbers must be finite, norms, overlaps and sizes positive")
    return lengths, members


def _global(out: Path, lengths: Collection[str]) -> Folder:
    shared = read_folder(out / GLOBAL, GLOBAL)
    numbers = examine(Adapters({GLOBAL: shared}, {}))
    absent = [name for name in lengths if name not in shared.modules or not numbers.votes(GLOBAL, name)]
    if absent:
        why = numbers.apart.get(GLOBAL, f"nothing in module {absent[0]}")
        raise _validate.fail("out", f"a folder whose {GLOBAL} is as save wrote it", f"{out}, with {why}")
    return shared


def _read(folder: str | os.PathLike[str], name: str, shared: Folder, same_base: bool) -> Folder:
    """Unusable where it adapts another base model, or a module in another shape, than the result."""
    try:
        client = read_folder(Path(folder), name)
        other_bases([shared, client], same=same_base, strict=False)
        other_shapes([shared, client], least=2, strict=False)
    except (OSError, ValueError) as error:
        return faulty(name, Path(folder), str(error))
    return client


def overlaps(clients: Mapping[str, Folder], shared: Folder, modules: Collection[str]) -> dict[str, float]:
    """The cosine that each client's start allows, had all learned the same: the mean over its modules of overlaps.

    An overlap is tr(P S) / √(p s), with P the client's row space and S the leading row space of what is shared. That
    has directions of little weight from each client; S are as many as hold its weight, (Σσ²)² / Σσ⁴.
    """
    found: dict[str, list[float]] = {name: [] for name in clients}
    for module in modules:
        common = spectrum(shared.product(module))
        weights = common.values**2
        leading = rows_of(common)[: int(np.ceil(weights.sum() ** 2 / (weights**2).sum()))]
        for name, client in clients.items():
            mine = rows_of(spectrum(client.product(module))) if module in client.modules else ()
            if len(mine):  # none of zeros
                found[name].append(float(np.sum((mine @ leading.T) ** 2) / np.sqrt(len(mine) * len(leading))))
    return {name: float(np.mean(each)) if each else 0.0 for name, each in found.items()}


def _verdict(
    client: Folder, shared: Folder, lengths: Mapping[str, float], zeros: list[str], reference: Reference
) -> ClientVerdict:
    modules = [name for name in lengths if name in client.modules and name not in zeros]
    if not modules:
        return ClientVerdict(client.name, UNDECIDED, "it adapts no module that the result has")
    inner, own, others, sizes = 0.0, 0.0, 0.0, []
    for name in modules:
        table = inner_products([client.product(name), shared.product(name)])
        size = float(np.sqrt(max(table[0, 0], 0))) / lengths[name]
        clip = min(1, CLIP / size)
        inner, own, others = inner + clip * table[0, 1], own + clip**2 * table[0, 0], others + table[1, 1]
        sizes.append(size)
    agreement = float(inner / np.sqrt(own * others)) if own * others > 0 else 0.0
    overlap, size = overlaps({"": client}, shared, modules)[""], float(np.median(sizes))
    word, member, relative = reference.verdict(agreement, overlap, size)
    mine = ClientVerdict(
        client=client.name,
        verdict=word,
        reason="",
        member=member,
        modules=len(modules),
        agreement=agreement,
        usual=reference.plain.middle,
        spread=reference.plain.spread,
        relative=relative,
        size=size,
    )
    return said(mine, reference.decided)
