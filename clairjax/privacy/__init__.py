"""What a run of a private algorithm spends: ε under a named adjacency, the noise for it, and an audit of both."""

from ._accounting import epsilon as epsilon
from ._accounting import noise_multiplier as noise_multiplier
from ._audit import Attack as Attack
from ._audit import Audit as Audit
from ._audit import audit as audit
from ._canary import GaussianCanary as GaussianCanary
from ._events import GaussianRounds as GaussianRounds
from ._keys import secret_key as secret_key
from ._ledger import Ledger as Ledger
from ._sampling import FixedSize as FixedSize
from ._sampling import Poisson as Poisson
