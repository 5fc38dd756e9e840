"""Monte Carlo sweeps: a replicate function over cells x replicates, stored, resumable, bit-identical."""

from ._calls import run_calls as run_calls
from ._calls import run_calls_part as run_calls_part
from ._estimate import Estimate as Estimate
from ._plan import replicate_key as replicate_key
from ._results import Results as Results
from ._runner import run as run
from ._runner import run_part as run_part
from ._store import check_folder as check_folder
