"""These tests run where there is flwr, an environment of their own; anywhere else they are skipped."""

import logging
import random
from importlib.util import find_spec

import pytest


collect_ignore = [] if find_spec("flwr") else ["nodes.py"]
logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture
def run():
    """A run in this process of nodes 1000, 1001, …, of these ranks; the strategy, with its grid and its result."""
    pytest.importorskip("flwr")
    import nodes

    from clairjax.flower import ClairStrategy, LocalGrid, arrays

    def run(ranks, bad=None, *, rounds=2, silent=lambda node, number: False, app=None, strategy=None, **options):
        random.seed(0)  # by which Flower samples nodes
        grid = LocalGrid(app or nodes.make_app(), nodes.fleet(ranks, bad), silent)
        strategy = strategy or ClairStrategy(nodes.config(4), **options)
        strategy.result = strategy.start(grid, arrays(nodes.start(4)), num_rounds=rounds, timeout=5)
        strategy.grid = grid
        return strategy

    return run
