"""Pure array functions the methods are built from. No state, no options objects."""

from ._grid import grid_gaussian_mechanism as grid_gaussian_mechanism
from ._lanczos import spectral_norm as spectral_norm
from ._mechanism import clip_by_norm as clip_by_norm
from ._mechanism import gaussian_mechanism as gaussian_mechanism
from ._norm import normalize as normalize
from ._orthonormal import orthonormalize as orthonormalize
from ._spectral import gram as gram
from ._spectral import right_basis as right_basis
from ._spectral import svt as svt
from ._threshold import block_norms as block_norms
from ._threshold import block_soft_threshold as block_soft_threshold
