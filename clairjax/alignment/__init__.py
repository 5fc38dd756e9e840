"""CLAIR: align the matrices that clients report and find the contaminated ones."""

from ._averaging import fedavg as fedavg
from ._averaging import label_oracle as label_oracle
from ._averaging import local as local
from ._averaging import oracle_fedavg as oracle_fedavg
from ._clair import ClairResult as ClairResult
from ._clair import clair as clair
from ._contrasts import contrasts as contrasts
from ._decompose import decompose as decompose
from ._decompose import decompose_noiseless as decompose_noiseless
from ._factored import Factored as Factored
from ._gain import Collaboration as Collaboration
from ._gain import collaboration as collaboration
from ._gain import decomposition_cost as decomposition_cost
from ._gain import estimate_collaboration as estimate_collaboration
from ._gain import even_mse_factor as even_mse_factor
from ._gain import projected_errors as projected_errors
from ._program import Decomposition as Decomposition
from ._program import Penalty as Penalty
from ._proximal_gradient import ProximalGradient as ProximalGradient
from ._refine import refine as refine
from ._theory import column_overlap as column_overlap
from ._theory import corrupted_pairs as corrupted_pairs
from ._theory import incoherence as incoherence
from ._theory import penalty_ratio_bounds as penalty_ratio_bounds
from ._theory import penalty_ratio_interval as penalty_ratio_interval
from ._theory import vote_share_interval as vote_share_interval
