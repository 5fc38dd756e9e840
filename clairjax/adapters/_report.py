"""The content of `report.json`."""

from typing import Any

from ._place import FORMAT
from ._refine import Refinement
from ._verdict import RULE


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
            "reach": each.reach,
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
        "shared": refinement.shared,
        "clients": verdicts,
        "modules": modules,
        "notices": list(refinement.notices),
    }
