"""CLAIR as a strategy of Flower: a server that judges adapters and hands each node its own; and a node's half of it.

Never imported by `import clairjax`: it needs flwr, `pip install "clairjax[flower]"`. A node's half and the grid for
trying out import NumPy and flwr alone; JAX comes with `ClairStrategy`.
"""

from typing import TYPE_CHECKING

from ._client import fit as fit
from ._client import measured as measured
from ._client import reply as reply
from ._client import start_from as start_from
from ._local import LocalGrid as LocalGrid
from ._records import arrays as arrays
from ._records import tensors as tensors


if TYPE_CHECKING:
    from ._rounds import Round as Round
    from ._strategy import ClairStrategy as ClairStrategy
else:

    def __getattr__(name):
        """What needs JAX: a node's process starts without."""
        from importlib import import_module

        homes = {"ClairStrategy": "._strategy", "Round": "._rounds"}
        if name not in homes:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], __name__), name)
