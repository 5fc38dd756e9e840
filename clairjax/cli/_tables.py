"""The tables of `clairjax refine`."""

from typing import Any

from rich.table import Table
from rich.text import Text


ADVICE = {
    "unrelated": "another task, wrong or random data, or an attack; factors cannot say which",
    "sign-flipped": "an attack, or updates subtracted where others add them",
    "other rows": "another start, or a row space that was tampered with",
    "rescaled": "no exclusion: another alpha or learning rate, much more or much less training, or a wish for weight; "
    "what is shared takes at most 1.5 times the usual size of it",
    "undecided": "factors do not tell whether it has the others' task",
}


def refine_tables(content: dict[str, Any]) -> tuple[Table, Table]:
    """`Text`, since brackets in a name are no markup. Modules only where something was written of them."""
    columns = {
        "shared rank": lambda module: _number(module["shared_rank"]),
        "refined rank": lambda module: _number(module["refined_rank"]),
        "largest error": _largest_error,
    }
    shown = {title: value for title, value in columns.items() if any(map(value, content["modules"].values()))}
    modules = _table("module", "clients", *shown)
    for name, module in content["modules"].items():
        row = [name, str(len(module["clients"])), *(value(module) for value in shown.values())]
        modules.add_row(*map(Text, row))
    return modules, client_table(content)


def client_table(content: dict[str, Any]) -> Table:
    """Each client's verdict, with the reason."""
    clients = _table("client", "verdict", "agreement", "size", "why")
    for name, client in content["clients"].items():
        numbers = [client["agreement"], client["size"]]
        row = [name, client["verdict"], *("" if each is None else f"{each:.3g}" for each in numbers), client["reason"]]
        clients.add_row(*map(Text, row))
    return clients


def advice(content: dict[str, Any]) -> list[str]:
    """What each verdict that was given can mean."""
    given = {client["verdict"] for client in content["clients"].values()}
    return [f"{word}: {meaning}" for word, meaning in ADVICE.items() if word in given]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _largest_error(module: dict[str, Any]) -> str:
    errors = [one["truncation_error"] for one in module["clients"].values() if "truncation_error" in one]
    return f"{max(errors):.1%}" if errors else ""


def _table(*columns: str) -> Table:
    """Nothing is cut off where there is little room: long words are folded, and numbers keep their width."""
    table = Table(box=None)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("agreement", "size", "largest error"))
    return table
