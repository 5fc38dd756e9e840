"""The helpers of this folder, and fixtures from them."""

import sys
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).parent))
import fleet


@pytest.fixture
def clients(rng):
    return fleet.federation(rng)
