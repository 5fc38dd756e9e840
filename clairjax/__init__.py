"""Federated low-rank adaptation and shared representations in JAX."""

from importlib.metadata import version

from ._status import Status as Status
from .alignment import clair as clair
from .alignment import ClairResult as ClairResult
from .alignment import decompose as decompose
from .alignment import Decomposition as Decomposition
from .alignment import Factored as Factored
from .alignment import Penalty as Penalty
from .alignment import ProximalGradient as ProximalGradient


__version__ = version("clairjax")
