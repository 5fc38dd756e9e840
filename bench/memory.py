"""Claim: `clair` on 48 dense clients of 1024 × 1024 float32 stays below 2.5 GiB, whole process, and finds the set.

Runs in a process of its own, `python -m bench.memory CLIENTS SIZE`, which prints one JSON object.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ._report import Check, Report


ROOT = Path(__file__).parent.parent
GIB = 2**30


def measure(quick: bool) -> Report:
    clients, size = (8, 32) if quick else (48, 1024)
    environment = os.environ | {"JAX_ENABLE_X64": "0"}
    command = [sys.executable, "-m", "bench.memory", str(clients), str(size)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout)
    checks = [
        Check("peak resident memory of the process, GiB", row["peak GiB"], 2.5),
        Check("clients put on the wrong side", row["wrong"], 0),
    ]
    return Report(f"memory of clair on {clients} clients of {size} × {size}, float32", [row], checks)


def child(clients: int, size: int) -> dict[str, Any]:
    import jax
    import numpy as np

    import clairjax as cj

    from ._problems import planted

    jax.local_devices()
    imported = _peak()
    host, members = planted(clients, size, rank=4)
    weights = jax.device_put(host)  # on a CPU this may be the same memory
    del host
    drawn = _peak()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        result = jax.block_until_ready(cj.clair(weights))
        seconds.append(time.perf_counter() - start)
        wrong = int((np.asarray(result.members) != members).sum())
        rank, status = int(result.rank), cj.Status[result.status].split(":")[0]
        del result
    return {
        "clients GiB": weights.nbytes / GIB,
        "imported GiB": imported / GIB,
        "drawn GiB": drawn / GIB,
        "peak GiB": _peak() / GIB,
        "wrong": wrong,
        "rank": rank,
        "status": status,
        "run s": seconds[1],
        "compile s": seconds[0] - seconds[1],
    }


def _peak() -> int:
    """Most memory ever resident, in bytes. Not `ru_maxrss` where there is a choice: a child inherits its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    print(json.dumps(child(int(sys.argv[1]), int(sys.argv[2]))))
