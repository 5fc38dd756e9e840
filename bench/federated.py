"""Claims: a round of FLUTE and one of CENTAUR against a plain PyTorch loop that does the same work.

Both run in one process with two host devices, in turn, so that load strikes both: `python -m bench.federated
flute|centaur CLIENTS SAMPLES SIDE REPEATS`. A third part, `kernel`, compares two ways to compute a convolution and its
gradient in a loop.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ._report import Check, Report
from .memory import ROOT


CLASSES = 10


def measure(quick: bool) -> Report:
    sizes = {"flute": [(2, 20, 16, 2)] if quick else [(10, 500, 32, 5), (100, 500, 32, 1)]}
    sizes["centaur"] = [(2, 20, 16, 2)] if quick else [(500, 90, 32, 2)]
    rows = [_run(what, *each) for what, several in sizes.items() for each in several]
    rows += [_run("kernel", 10, 16 if quick else 50, 16 if quick else 32, 2)]
    checks = []
    for row in rows[:-1]:
        what, seconds = row["what"], row["run s"]
        checks.append(Check(f"{what}: PyTorch, 2 threads, over ours", row["torch 2 s"] / seconds, 1.5, True))
        if what.startswith("FLUTE"):
            checks.append(Check(f"{what}: PyTorch, 1 thread, over ours", row["torch 1 s"] / seconds, 2.3, True))
        else:
            ratio = row["torch, features each epoch s"] / seconds
            checks.append(Check(f"{what}: PyTorch that caches no features, over ours", ratio, 3.0, True))
        checks.append(Check(f"{what}: compile, s", row["compile s"], 4.0))
    apart = max(row["difference"] for row in rows if "difference" in row)
    checks.append(Check("relative difference of what both end with, the largest", apart, 1e-3))
    return Report("federated rounds of convolutional networks, float32", rows, checks)


def _run(what: str, *sizes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.federated", what, *map(str, sizes)]
    flags = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def data(clients: int, samples: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, and each client's rows."""
    rng = np.random.default_rng(0)
    pool = min(clients, 40) * samples  # a larger one is no more work
    images = rng.integers(0, 256, (pool, side, side, 3), np.uint8)
    rows = np.arange(clients * samples).reshape(clients, samples) % pool
    return images, rng.integers(0, CLASSES, pool).astype(np.int32), rows.astype(np.int32)


def in_turn(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, one after another in every repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def ours(strategy: Any, model: Any, images: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> tuple[Any, float]:
    """A round as a function without arguments, and the seconds it compiled; nothing is evaluated."""
    import jax
    import jax.numpy as jnp

    from clairjax import data, privacy
    from clairjax.federated import _private, _rounds, _train

    samples = data.Split.of(list(rows))
    none = data.Split.of([row[:0] for row in rows])
    federation = data.Federation(jnp.asarray(images), jnp.asarray(labels), samples, none, none, CLASSES)
    sampler = privacy.Poisson(1.0)
    strategy = _private.prepared(strategy, sampler, 1)
    place = _train._start(strategy, model, federation, jax.random.key(0), sampler)
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
    arguments = strategy, sampler, federation, place, zero, one, 1, tuple(jax.devices()), jax.random.key(1)
    start = time.perf_counter()
    compiled = _rounds.program(_rounds.advance).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    run = lambda: jax.block_until_ready(compiled(*arguments))
    run()
    return run, seconds


def torch_network(model: Any, side: int) -> Any:
    """The same network with the same numbers: pooled images are flattened channels first there."""
    import torch
    from torch import nn

    layers: list[Any] = []
    depth = 3
    for block in model.blocks:
        layer = nn.Conv2d(depth, len(block.bias), 5)
        layers += [layer, nn.ReLU(), nn.MaxPool2d(2)]
        _copy(layer, np.asarray(block.weight), np.asarray(block.bias))
        depth, side = len(block.bias), (side - 4) // 2
    layers.append(nn.Flatten())
    for number, dense in enumerate(model.dense):
        weight = np.asarray(dense.weight)
        if number == 0:
            weight = weight.reshape(len(weight), side, side, depth).transpose(0, 3, 1, 2).reshape(weight.shape)
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        _copy(layer, weight, np.asarray(dense.bias))
        layers += [layer, nn.ReLU()]
    head = nn.Linear(model.head.weight.shape[1], CLASSES)
    _copy(head, np.asarray(model.head.weight), np.asarray(model.head.bias))
    torch.manual_seed(0)
    return nn.Sequential(*layers), head


def _copy(layer: Any, weight: np.ndarray, bias: np.ndarray) -> None:
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def torch_sgd(parameters: Any, rate: float, momentum: float) -> Any:
    import torch

    parameters = list(parameters)
    matrices = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 1e-4}, {"params": others}]
    return torch.optim.SGD(groups, lr=rate, momentum=momentum)


def pixels(images: np.ndarray) -> Any:
    import torch

    return torch.tensor(images).permute(0, 3, 1, 2).contiguous()


def collapse(weight: Any, mask: Any) -> Any:
    import torch

    gram = weight @ weight.T
    size = len(gram)
    target = torch.outer(mask, mask) * (torch.eye(size) - 1 / size) / (size - 1) ** 0.5
    return torch.linalg.norm(gram / torch.linalg.norm(gram) - target)


def flute(clients: int, samples: int, side: int, repeats: int) -> dict[str, Any]:
    """10 clients, 500 images each, batches of 10, all of FLUTE's loss and its server's step."""
    import copy

    import jax
    import torch
    from torch.nn import functional

    from clairjax import federated, models

    images, labels, rows = data(clients, samples, side)
    model = models.flute_cnn(shape=(side, side, 3), key=jax.random.key(0))
    run, seconds = ours(federated.Flute(), model, images, labels, rows)
    body, head = torch_network(model, side)
    pool, numbers = pixels(images), torch.tensor(labels).long()

    def client(own: np.ndarray) -> tuple[Any, Any, Any]:
        net, top = copy.deepcopy(body), copy.deepcopy(head)
        optimiser = torch_sgd([*net.parameters(), *top.parameters()], 0.01, 0.5)
        mask = torch.zeros(CLASSES).index_fill(0, numbers[own].unique(), 1.0)
        for batch in torch.tensor(own)[torch.randperm(len(own))].split(10):
            features = net((pool[batch].float() - 127.5) / 127.5)
            loss = functional.cross_entropy(top(features), numbers[batch]) + 0.005 * (features**2).sum(1).mean()
            loss = loss + 0.0025 * (top.weight**2).sum() + 0.25 * collapse(top.weight, mask)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return net, top, mask

    def round_(threads: int) -> Any:
        torch.set_num_threads(threads)
        done = [client(own) for own in rows]
        with torch.no_grad():
            bodies = zip(*(net.parameters() for net, _, _ in done), strict=True)
            mean = [torch.stack(leaves).mean(0) for leaves in bodies]
        value = sum(collapse(top.weight, mask) for _, top, mask in done) / len(done)
        value.backward()
        return mean

    place = run()[0]
    mean = round_(1)
    length = _length(place.server.body.blocks[1].weight, mean[2], model.blocks[1].weight)
    times = in_turn({"run s": run, "torch 1 s": lambda: round_(1), "torch 2 s": lambda: round_(2)}, repeats)
    what = f"FLUTE, {clients} clients × {samples} images"
    # Batches are drawn in other orders: after one pass the sizes of the changes are alike, and no more.
    return {"what": what, "compile s": seconds, **times, "change over theirs": length}


def _length(ours: Any, theirs: Any, start: Any) -> float:
    """How long our change of a weight is, over theirs."""
    ours, start = np.asarray(ours), np.asarray(start)
    return float(np.linalg.norm(ours - start) / np.linalg.norm(theirs.numpy() - start))


def centaur(clients: int, samples: int, side: int, repeats: int) -> dict[str, Any]:
    """15 full-batch steps of the head on features, one of the body; here all is determined, and compared."""
    import copy

    import jax
    import torch
    from torch.nn import functional

    from clairjax import federated, models

    images, labels, rows = data(clients, samples, side)
    model = models.lenet(shape=(side, side, 3), key=jax.random.key(0))
    local = federated.Local(federated.sgd(0.01, momentum=0.9, decay=1e-4), batch=None)
    strategy = federated.Centaur(federated.Privacy(1e3, noise_multiplier=0.0), local, tune=0)
    run, seconds = ours(strategy, model, images, labels, rows)
    body, head = torch_network(model, side)
    pool, numbers = pixels(images), torch.tensor(labels).long()

    def client(own: Any, cached: bool) -> Any:
        net, top = copy.deepcopy(body), copy.deepcopy(head)
        inputs, targets = (pool[own].float() - 127.5) / 127.5, numbers[own]
        optimiser = torch_sgd(top.parameters(), 0.01, 0.9)
        features = None
        for _ in range(15):
            if features is None or not cached:
                with torch.no_grad():
                    features = net(inputs)
            optimiser.zero_grad()
            functional.cross_entropy(top(features), targets).backward()
            optimiser.step()
        optimiser = torch_sgd(net.parameters(), 0.01, 0.9)
        functional.cross_entropy(top(net(inputs)), targets).backward()
        optimiser.step()
        return [
            after.detach() - before.detach() for after, before in zip(net.parameters(), body.parameters(), strict=True)
        ]

    def round_(threads: int, cached: bool = True) -> Any:
        torch.set_num_threads(threads)
        total = None
        for own in rows:
            change = client(torch.tensor(own).long(), cached)
            total = change if total is None else [a + b for a, b in zip(total, change, strict=True)]
        assert total is not None
        return [each / len(rows) for each in total]

    place, change = run()[0], round_(2)[2].numpy()
    moved = np.asarray(place.server.blocks[1].weight) - np.asarray(model.blocks[1].weight)
    ways = {
        "run s": run,
        "torch 1 s": lambda: round_(1),
        "torch 2 s": lambda: round_(2),
        "torch, features each epoch s": lambda: round_(2, cached=False),
    }
    times = in_turn(ways, repeats)
    difference = float(np.linalg.norm(moved - change) / np.linalg.norm(change))
    what = f"CENTAUR, {clients} clients × {samples} images"
    return {"what": what, "compile s": seconds, **times, "difference": difference}


def kernel(batch: int, steps: int, side: int, repeats: int) -> dict[str, Any]:
    """Gradient steps in a loop: the block with a derivative written by hand, and XLA's convolution."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from clairjax.models import ConvPool
    from clairjax.models._conv import conv_pool, plain_conv_pool

    keys = jax.random.split(jax.random.key(0), 2)
    blocks = [ConvPool.create(3, 64, 5, key=keys[0]), ConvPool.create(64, 64, 5, key=keys[1])]
    weights = [(block.weight, block.bias) for block in blocks]
    images = jnp.asarray(np.random.default_rng(0).standard_normal((steps, batch, side, side, 3), np.float32))

    def descend(block: Any, weights: Any, images: Any) -> Any:
        def loss(weights: Any, batch: Any) -> Any:
            for weight, bias in weights:
                batch = block(batch, weight, bias)
            return jnp.mean(batch**2)

        step = lambda weights, batch: (
            jax.tree.map(lambda w, g: w - 0.01 * g, weights, jax.grad(loss)(weights, batch)),
            None,
        )
        return lax.scan(step, weights, images)[0]

    ways, ends, seconds = {}, [], 0.0
    for name, block, number in (("run s", conv_pool, steps), ("lax.conv, 5 steps s", plain_conv_pool, 5)):
        start = time.perf_counter()
        compiled = jax.jit(lambda w, x, block=block: descend(block, w, x)).lower(weights, images[:number]).compile()
        seconds = seconds or time.perf_counter() - start
        run = lambda compiled=compiled, number=number: jax.block_until_ready(compiled(weights, images[:number]))
        ends.append(jax.jit(lambda w, x, block=block: descend(block, w, x))(weights, images[:5]))
        ways[name] = run
    times = in_turn(ways, repeats)
    apart = [float(abs(a - b).max() / abs(b).max()) for a, b in zip(*map(jax.tree.leaves, ends), strict=True)]
    return {"what": f"two blocks, {steps} steps of {batch}", "compile s": seconds, **times, "difference": max(apart)}


if __name__ == "__main__":
    parts = {"flute": flute, "centaur": centaur, "kernel": kernel}
    print(json.dumps(parts[sys.argv[1]](*map(int, sys.argv[2:]))))
