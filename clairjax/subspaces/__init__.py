"""Subspaces given by orthonormal bases: projectors, angles, distance, and rank from a spectrum."""

from ._distance import along as along
from ._distance import principal_angles as principal_angles
from ._distance import projector as projector
from ._distance import subspace_distance as subspace_distance
from ._rank import noise_edge_rank as noise_edge_rank
from ._rank import rank_from_gap as rank_from_gap
