"""How many cores this process may keep busy: those it is bound to, within its container's share of their time."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """At least one."""
    affinity = getattr(os, "sched_getaffinity", None)
    bound = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(bound, quota() or bound)


def quota(root: Path = Path("/")) -> int | None:
    """The least quota of this process's control groups and those above, in whole cores, rounded up; None: no quota.

    Of either version of control groups, as `/proc` and the mounted groups below `root` say.
    """
    found = [cores for group in _groups(root) if (cores := _quota(group)) is not None]
    return max(1, math.ceil(min(found))) if found else None


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that may hold a quota: the process's own first, then up to where they are mounted."""
    own = dict(_own_groups(root))
    for line in _lines(root / "proc/self/mountinfo"):
        mounted, _, source = line.partition(" - ")
        kind, _, options = source.split()[:3] if len(source.split()) >= 3 else ("", "", "")
        version = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if version not in own or (version == "cpu" and "cpu" not in options.split(",")):
            continue
        top, place = mounted.split()[3:5]  # a container may see a group of the host as the top
        group = root / place.lstrip("/")
        below = Path(own[version])
        if below.is_relative_to(top):
            parts = below.relative_to(top).parts
            yield from (group.joinpath(*parts[:end]) for end in range(len(parts), 0, -1))
        yield group


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    """Path of this process's group by controller: `cpu` of version 1, the empty name of version 2."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "cpu" in controllers.split(","):
            yield ("" if number == "0" else "cpu"), path


def _quota(group: Path) -> float | None:
    words = _lines(group / "cpu.max")  # version 2: quota and period in one file
    if not words:
        words = [*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")]
    try:
        micros, period = map(int, " ".join(words).split())
    except ValueError:  # `max`, or nothing that is understood
        return None
    return micros / period if micros > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
