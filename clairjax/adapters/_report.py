"""The content of `report.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..alignment import VERDICTS as OF_COMPARED
from ._client import CARD
from ._config import CONFIG
from ._folder import WEIGHTS
from ._names import FIGURE, GLOBAL, REPORT
from ._place import FORMAT
from ._pool import Pool
from ._refine import Refinement
from ._shared import Median, Shared
from ._sharing import Sharing
from ._verdict import RULE


VERDICTS = (*(word for word in OF_COMPARED if word != "absent"), "idle", "unusable")
Facts = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Written:
    """What `save` did: `clients` by name and module, where adapters were written; `overlaps` of members' row spaces
    with the global adapter's."""

    sharing: Sharing
    pool: Pool
    median: Median | None = None
    shared: Shared | None = None
    clients: Mapping[str, Facts] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    overlaps: Mapping[str, float] = field(default_factory=dict)


def report(refinement: Refinement, written: Written | None = None) -> dict[str, Any]:
    """The content of `report.json`; before anything is written, without what is shared and how.

    **Args:** `refinement`, of `refine`; `written`, of `save` alone.

    **Cost:** none to speak of.

    >>> import clairjax as cj
    >>> cj.adapters.report(refinement)["clients"]["hospital-3"]["verdict"]  # doctest: +SKIP
    'unrelated'
    """
    found = _found(refinement)
    if written is None:
        return found | {"sharing": None, "global": None, "files": []}
    for module, content in found["modules"].items():
        content |= _module(module, written)
        for name, client in content["clients"].items():
            client |= written.clients.get(name, {}).get(module, {})
    return found | {
        "sharing": _sharing(written.sharing),
        "global": _global(written),
        "files": [REPORT, FIGURE, *_files(refinement, written)],
        "notices": [*found["notices"], *written.notices, *_bounds(written), *_left_out(refinement, written)],
    }


def _found(refinement: Refinement) -> dict[str, Any]:
    modules = {
        module: {
            "shape": list(each.shape),
            "shared_rank": None,
            "refined_rank": None,
            "clients": {name: {"agreement": each.agreement[name], "size": each.size[name]} for name in each.clients},
        }
        for module, each in refinement.findings.items()
    }
    members = refinement.members
    clients = {
        name: {field: value for field, value in vars(each).items() if field != "client"}
        | {"member": name in members, "folder": str(refinement.adapters.clients[name].path)}
        for name, each in refinement.verdicts.items()
    }
    return {
        "format": FORMAT,
        "rule": RULE,
        "tolerance": refinement.tolerance,
        "rank": refinement.rank,
        "shrink": refinement.shrink,
        "shared": refinement.shared,
        "clients": json.loads(json.dumps(clients)),  # lists for tuples
        "modules": modules,
        "notices": list(refinement.notices),
    }


def _module(module: str, written: Written) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if written.median is not None and module in written.median.ranks:
        content["global_rank"] = written.median.ranks[module]
        content["global_truncation_error"] = written.median.errors[module]
        content["usual_norm"] = written.pool.lengths[module]
    if written.shared is not None and module in written.shared.ranks:
        content["shared_rank"] = written.shared.ranks[module][0]
    ranks = [int(facts[module]["rank"]) for facts in written.clients.values() if module in facts]
    return content | ({"refined_rank": max(ranks)} if ranks else {})


def _sharing(sharing: Sharing) -> dict[str, Any]:
    losses = {name: {f"{t:g}": loss for t, loss in mine.items()} for name, mine in sharing.losses.items()}
    content = {"space": sharing.space, "t": sharing.t, "by": sharing.by, "why": sharing.why}
    return content | {"evidence": sharing.evidence, "rho": sharing.rho, "losses": losses}


def _global(written: Written) -> dict[str, Any] | None:
    if written.median is None:
        return None
    clients = {
        name: {
            "samples": written.pool.samples[name],
            "weight": weight,
            "agreement": written.pool.agreement[name],
            "overlap": written.overlaps[name],
        }
        for name, weight in written.pool.weights.items()
    }
    clipped = {
        name: [module for module, clips in written.pool.clips.items() if clips.get(name, 1) < 1] for name in clients
    }
    return {"folder": GLOBAL, "clients": {name: each | {"clipped": clipped[name]} for name, each in clients.items()}}


def _files(refinement: Refinement, written: Written) -> list[str]:
    clients = refinement.adapters.clients
    cards = {name: [CARD] if (clients[name].path / CARD).is_file() else [] for name in written.clients}
    folders: dict[str, list[str]] = {} if written.median is None else {GLOBAL: []}
    return [f"{name}/{file}" for name, more in (folders | cards).items() for file in (CONFIG, WEIGHTS, *more)]


def _bounds(written: Written) -> list[str]:
    if written.shared is None:
        return []
    space = written.shared.space
    return [
        f"module {module}: the search for shared {space} ended at its bound, rank {rank}; there may be more: say the "
        "rank, shared_rank=…, --shared-rank"
        for module, (rank, ended) in written.shared.ranks.items()
        if ended
    ]


def _left_out(refinement: Refinement, written: Written) -> list[str]:
    """Tensors beside the factors are a client's own."""
    clients = refinement.adapters.clients
    carrying = [name for name in written.pool.weights if clients[name].carried]
    if written.median is None or not carrying:
        return []
    return [f"{GLOBAL} has factors only, and none of what client {carrying[0]} trained beside them"]
