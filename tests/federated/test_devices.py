"""The clients of a round split over devices: eight emulated ones say what one says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


PROGRAM = """
import json
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
import fleet
from clairjax import federated
from clairjax.federated import Centaur, Clair, Flute, Privacy

clients = fleet.federation(np.random.default_rng(1), clients=10)
model = jax.tree.map(lambda leaf: leaf.astype("float64"), fleet.network())
found = {}
for name, strategy in {
    "Flute": Flute(fleet.local()),
    "Centaur": Centaur(Privacy(0.1, noise_multiplier=0.5), fleet.local(), head_epochs=2, tune=1),
    "Clair": Clair(fleet.local(), layers=lambda model: model.dense, own=lambda model: model.head),
}.items():
    for devices in (1, 8):
        run = federated.train(model, strategy, clients, rounds=4, key=jax.random.key(2), evaluate_every=2,
                              sampler=None if name == "Centaur" else 5, devices=jax.devices()[:devices])
        found[f"{name} {devices}"] = [run.accuracies.tolist(), run.losses.tolist(),
                                      [float(abs(leaf).sum()) for leaf in jax.tree.leaves(run.server)]]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_eight_devices_give_the_numbers_of_one():
    """Neither five clients of a round nor ten in an evaluation divide by eight. In float64, to 1e-9."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | flags | {"PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("Flute", "Centaur", "Clair"):
        for one, eight in zip(found[f"{name} 1"], found[f"{name} 8"], strict=True):
            np.testing.assert_allclose(one, eight, rtol=1e-9)
