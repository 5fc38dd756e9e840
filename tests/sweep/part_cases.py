"""A part of a sweep of many cheap blocks, for a process to run once it is told to go.

    python part_cases.py OUT SEED I N

prints a line when it is ready and waits for one; then it computes.
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from clairjax import sweep


class Cell(NamedTuple):
    size: int


CELLS = (Cell(3), Cell(5))
REPLICATES = 100


def replicate(key, cell):
    words = jax.random.key_data(key) % 1009
    x = jnp.sin(jnp.sum(words).astype(float) * jnp.arange(1.0, cell.size + 1))
    return {"mean": x.mean(), "factor": jnp.linalg.cholesky(jnp.outer(x, x) + jnp.eye(cell.size))}


def asked(out, seed):
    return {
        "replicate": replicate,
        "cells": CELLS,
        "key": jax.random.key(seed),
        "replicates": REPLICATES,
        "lane_width": 1,
        "out": out,
    }


if __name__ == "__main__":
    out, (seed, *part) = sys.argv[1], map(int, sys.argv[2:])
    what = asked(out, seed)
    print("ready", flush=True)
    sys.stdin.readline()
    print(sweep.run_part(part=tuple(part), **what))
