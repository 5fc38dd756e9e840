"""CLAIR: align the matrices that clients report and find the contaminated ones."""

from ._averaging import fedavg as fedavg
from ._averaging import label_oracle as label_oracle
from ._averaging import local as local
from ._averaging import oracle_fedavg as oracle_fedavg
from ._clair import ClairResult as ClairResult
from ._clair import clair as clair
from ._clair import decompose as decompose
from ._factored import Factored as Factored
from ._program import Decomposition as Decomposition
from ._program import Penalty as Penalty
from ._proximal_gradient import ProximalGradient as ProximalGradient
