"""The public names, for `clairjax` to give out."""

from importlib.metadata import version as _version

from . import adapters as adapters
from . import alignment as alignment
from . import data as data
from . import experiments as experiments
from . import federated as federated
from . import kernels as kernels
from . import models as models
from . import privacy as privacy
from . import representation as representation
from . import subspaces as subspaces
from . import sweep as sweep
from ._status import Status as Status
from .alignment import ClairResult as ClairResult
from .alignment import Decomposition as Decomposition
from .alignment import Factored as Factored
from .alignment import LowRankMatrices as LowRankMatrices
from .alignment import Penalty as Penalty
from .alignment import ProximalGradient as ProximalGradient
from .alignment import clair as clair
from .alignment import decompose as decompose
from .profiling import Profile as Profile
from .profiling import profile as profile
from .representation import PrivatePowerMethod as PrivatePowerMethod
from .representation import Representation as Representation
from .representation import centaur as centaur
from .representation import fedrep as fedrep
from .representation import flute as flute
from .representation import private_power_method as private_power_method
from .representation import truncated_ridge as truncated_ridge


__version__ = _version("clairjax")
