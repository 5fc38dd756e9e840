"""`--part`: what it may be, and what is said where a launcher started several tasks and none has a part."""

import os
import re
from collections.abc import Mapping

from .._validate import fail


PREPARE = "prepare"

# How many tasks a launcher started, and which of them this is.
_TASKS = {
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "SLURM_NTASKS": "SLURM_PROCID",
    "SLURM_ARRAY_TASK_COUNT": "SLURM_ARRAY_TASK_ID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
    "FLUX_JOB_SIZE": "FLUX_TASK_RANK",
    "WORLD_SIZE": "RANK",
}
_ALSO_OF_AN_ALLOCATION = ("SLURM_NTASKS", "WORLD_SIZE")  # not of tasks alone, as their number is


def parse(part: str, out: object) -> tuple[int, int] | None:
    """The part (i, n), or None for what all parts share."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", part)
    if part != PREPARE and (found is None or not int(found[1]) < int(found[2])):
        raise fail("--part", "I/N with 0 <= I < N, as 0/8, or prepare", part)
    if out is None:
        raise fail("--out", "given with --part, a folder that all parts see", "none")
    return None if found is None else (int(found[1]), int(found[2]))


def several_tasks(environment: Mapping[str, str] = os.environ) -> str | None:
    """What to say where a launcher's variables tell of several tasks: each may be about to do all of the work."""
    for size, rank in _TASKS.items():
        if size not in environment or (size in _ALSO_OF_AN_ALLOCATION and rank not in environment):
            continue
        if environment[size].isdecimal() and (count := int(environment[size])) > 1:
            return (
                f"{size}={count}: where each of these tasks runs this same command, each does all of the work. "
                f"Give each its part, as --part ${rank}/{count} --out DIRECTORY, and collect without --part."
            )
        if size == "SLURM_STEP_NUM_TASKS":  # the allocation may be for more tasks than were started
            return None
    return None
