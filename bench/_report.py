"""What a benchmark returns, and how it is printed and stored."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Check(NamedTuple):
    """A figure beside its target."""

    what: str
    value: float
    target: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


class Report(NamedTuple):
    claim: str
    rows: list[dict[str, Any]]  # of one table: a missing entry is left blank
    checks: list[Check]

    def to_dict(self) -> dict[str, Any]:
        checks = [check._asdict() | {"met": bool(check.met)} for check in self.checks]
        return {"claim": self.claim, "rows": self.rows, "checks": checks}


def show(console: Console, title: str, report: Report) -> None:
    columns = list(dict.fromkeys(name for row in report.rows for name in row))
    table = Table(*columns, title=f"{title}: {report.claim}", title_justify="left")
    for row in report.rows:
        table.add_row(*(_text(row.get(name)) for name in columns))
    console.print(table)
    for check in report.checks:
        verdict = "[green]met[/]" if check.met else "[red]missed[/]"
        bound = "≥" if check.at_least else "≤"
        console.print(f"  {verdict}  {check.what}: {_text(check.value)} (target {bound} {_text(check.target)})")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Written beside and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, path)
