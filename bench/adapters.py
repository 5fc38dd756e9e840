"""Claims about adapters in factors, float32.

- `clair` from factors of 100 clients, rank 16, 4096 × 4096: 15 s with compilation, below 3 GiB.
- The verdict on 12 clients by one module of 4096 × 4096, rank 16: 0.1 s of processor time, and nothing is compiled.
- `clairjax refine`, 32 clients × 64 modules of 2048 × 2048, rank 8, from disk to disk: 3 minutes and 4 GiB.
- The same command again, 6 clients × 12 modules of 128 × 128: 5 s.
- 50 clients × 224 modules of 1024 × 1024, rank 16: ten minutes, by the modules that are timed.

Each runs in a process of its own, `python -m bench.adapters factors|verdict|folders CLIENTS SIZE RANK MODULES`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ._report import Check, Report
from .memory import GIB, ROOT, _peak


LAYERS = 224  # modules that 32 layers have with seven projections each


def measure(quick: bool) -> Report:
    factors = _run("factors", *((12, 96, 6, 1) if quick else (100, 4096, 16, 1)))
    verdict = _run("verdict", *((12, 96, 6, 1) if quick else (12, 4096, 16, 1)))
    folders = _run("folders", *((12, 80, 6, 2) if quick else (32, 2048, 8, 64)))
    small = _run("folders", *((4, 32, 6, 2) if quick else (6, 128, 8, 12)))
    many = _run("folders", *((12, 80, 6, 2) if quick else (50, 1024, 16, 8)))
    a_module = many["second run s"] / (2 if quick else 8)
    checks = [
        Check("clair from factors, compile included, s", factors["run s"], 15),
        Check("its peak resident memory, GiB", factors["peak GiB"], 3),
        Check("the verdict by one module, cpu s", verdict["cpu s"], 0.1),
        Check("programs compiled for it", verdict["compiled"], 0),
        Check("refine from disk to disk, s", folders["run s"], 180),
        Check("its peak resident memory, GiB", folders["peak GiB"], 4),
        Check("refine again, small, s", small["second run s"], 5),
        Check(f"refine, {LAYERS} modules, minutes", LAYERS * a_module / 60, 10),
        Check("clients put on the wrong side", sum(each["wrong"] for each in (factors, verdict, folders, many)), 0),
    ]
    return Report("adapters in factors, float32", [factors, verdict, folders, small, many], checks)


def _run(what: str, *sizes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.adapters", what, *map(str, sizes)]
    environment = os.environ | {"JAX_ENABLE_X64": "0", "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def planted(rng: np.random.Generator, client: int, shared: np.ndarray, common: list[np.ndarray], rank: int) -> Any:
    """(B, A): a common part, a part in the shared row space, noise; one client in four has a row space of its own."""
    size, own = shared.shape[1], shared.shape[0]
    noise = 0.1 * rng.standard_normal((size, rank - own - 1), np.float32)
    up = np.concatenate([common[0], rng.standard_normal((size, own), np.float32), noise], 1)
    down = rng.standard_normal((rank, size), np.float32)
    down[:1] = common[1]
    if client % 4:
        down[1 : own + 1] = shared
    return up, down


def module(seed: int, size: int) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng([1, seed])
    shared = rng.standard_normal((2, size), np.float32)
    return shared, [rng.standard_normal((size, 1), np.float32), rng.standard_normal((1, size), np.float32)]


def factors(clients: int, size: int, rank: int, _: int) -> dict[str, Any]:
    import jax

    import clairjax as cj

    shared, common = module(0, size)
    pairs = [planted(np.random.default_rng([2, k]), k, shared, common, rank) for k in range(clients)]
    ups, downs = (np.stack(side) for side in zip(*pairs, strict=True))
    jax.local_devices()
    start = time.perf_counter()
    found = jax.block_until_ready(cj.clair(cj.LowRankMatrices(ups, downs)))
    first = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(cj.clair(cj.LowRankMatrices(ups, downs)))
    again = time.perf_counter() - start
    wrong = int((np.asarray(found.members) != (np.arange(clients) % 4 > 0)).sum())
    label = f"clair, {clients} clients, rank {rank}, {size} × {size}"
    return _row(label, first, wrong) | {"second run s": again, "rank found": int(found.rank)}


def verdict(clients: int, size: int, rank: int, _: int) -> dict[str, Any]:
    """As `clairjax refine` asks for it: one in four has a row space of its own and points elsewhere."""
    from jax import monitoring

    import clairjax as cj

    compiled: list[str] = []
    monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    shared, common = module(0, size)
    pairs = [planted(np.random.default_rng([2, k]), k, shared, common, rank) for k in range(clients)]
    ups, downs = (np.stack(side).astype(np.float64) for side in zip(*pairs, strict=True))
    pool, evidence = cj.alignment.pool, cj.alignment.evidence  # rooms are imported when they are asked for
    wall, cpu = time.perf_counter(), time.process_time()
    found = pool([evidence((ups, downs))])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    wrong = int((np.asarray(found.members) != (np.arange(clients) % 4 > 0)).sum())
    label = f"verdict, {clients} clients, rank {rank}, {size} × {size}"
    return _row(label, wall, wrong) | {"cpu s": cpu, "compiled": len(compiled)}


def folders(clients: int, size: int, rank: int, modules: int) -> dict[str, Any]:
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inputs = [root / f"client{k:02}" for k in range(clients)]
        parts = [module(place, size) for place in range(modules)]
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": "base"}
        for k, path in enumerate(inputs):
            tensors = {}
            for place, (shared, common) in enumerate(parts):
                up, down = planted(np.random.default_rng([3, place, k]), k, shared, common, rank)
                name = f"base_model.model.layers.{place}.proj"
                tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
            path.mkdir()
            save_file(tensors, path / "adapter_model.safetensors")
            (path / "adapter_config.json").write_text(json.dumps(config))
        command = [sys.executable, "-c", COMMAND, "refine", *map(str, inputs), "--out", str(root / "out")]
        command += ["--rank", str(rank), "--force"]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(root / "programs")}
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            seconds.append(time.perf_counter() - start)
        report = json.loads((root / "out" / "report.json").read_text())
        peak = int(done.stdout.splitlines()[-1])
    verdicts = [each["verdict"] == "member" for each in report["clients"].values()]
    wrong = int((np.array(verdicts) != (np.arange(clients) % 4 > 0)).sum())
    label = f"refine, {clients} clients × {modules} modules, rank {rank}, {size} × {size}"
    return _row(label, seconds[0], wrong, peak) | {"second run s": seconds[1]}


COMMAND = """
import atexit
from bench.memory import _peak
from clairjax.cli import main
atexit.register(lambda: print(_peak()))
main()
"""


def _row(what: str, seconds: float, wrong: int, peak: int | None = None) -> dict[str, Any]:
    return {"what": what, "run s": seconds, "peak GiB": (_peak() if peak is None else peak) / GIB, "wrong": wrong}


if __name__ == "__main__":
    print(
        json.dumps({"factors": factors, "verdict": verdict, "folders": folders}[sys.argv[1]](*map(int, sys.argv[2:])))
    )
