"""One process without x64, as most users have: kernels, distances and a driver of each kind keep to float32."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest


FILES = ("test_protocol.py", "kernels/test_kernel_protocol.py", "subspaces/test_distance.py")
DRIVERS = "compile_nothing and (Factored or Multipliers or clair or flute)"


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="this is the 32-bit process")
def test_a_process_of_32_bits():
    tests = [str(Path(__file__).parent / file) for file in FILES]
    chosen = f"({DRIVERS}) or dtype or zero or switch or made or absent or finite"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", chosen],
        env=os.environ | {"CLAIRJAX_TEST_X64": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 40
