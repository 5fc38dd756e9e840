"""The tables of `clairjax refine`."""

from itertools import compress
from typing import Any

from rich.table import Table
from rich.text import Text


def refine_tables(content: dict[str, Any]) -> tuple[Table, Table]:
    """`Text`, since brackets in a name are no markup."""
    written = any(module["refined_rank"] is not None for module in content["modules"].values())
    columns = ["module", "shared rank", "refined rank", "voted out (votes)", "largest error", "status"]
    shown = [written or column not in ("refined rank", "largest error") for column in columns]
    modules = _table(*compress(columns, shown))
    for name, module in content["modules"].items():
        decided = any(one["member"] for one in module["clients"].values())
        outsiders = {who: one for who, one in module["clients"].items() if decided and not one["member"]}
        out = [f"{who} ({one['votes']:.0%})" for who, one in outsiders.items()]
        errors = [one["truncation_error"] for one in module["clients"].values() if "truncation_error" in one]
        refined = module["refined_rank"]
        ranks = [str(module["shared_rank"]), "" if refined is None else str(refined)]
        row = [name, *ranks, ", ".join(out), f"{max(errors):.1%}" if errors else "", _short(module["status"])]
        modules.add_row(*map(Text, compress(row, shown)))
    clients = _table("client", "verdict", "voted out of", "reach")
    for name, client in content["clients"].items():
        clients.add_row(
            Text(name),
            Text(client["verdict"] + (f" ({client['reason']})" if client["reason"] else "")),
            f"{len(client['voted_out'])} of {client['modules']} modules",
            "" if client["reach"] is None else f"{client['reach']:.3g}",
        )
    return modules, clients


def advice(content: dict[str, Any]) -> list[str]:
    """What the statuses other than converged say, in full: the table has the beginnings."""
    every = [module["status"] for module in content["modules"].values()]
    said = [status for status in dict.fromkeys(every) if not status.startswith("Converged")]
    return [f"{every.count(status)} of {len(every)} modules: {status}" for status in said]


def _short(status: str) -> str:
    return status.split(":")[0].split(",")[0]


def _table(*columns: str) -> Table:
    """Nothing is cut off where there is little room: long words are folded, and numbers keep their width."""
    table = Table(box=None)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("reach", "largest error"))
    return table
