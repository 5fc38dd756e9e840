"""Federated training of networks: one compiled round loop, and a strategy a file."""

from ._fedavg import FedAvg as FedAvg
from ._fedavg import FedAvgFT as FedAvgFT
from ._fedper import FedPer as FedPer
from ._fedrep import FedRep as FedRep
from ._flute import Flute as Flute
from ._history import History as History
from ._lg import LGFedAvg as LGFedAvg
from ._local import Local as Local
from ._local import cross_entropy as cross_entropy
from ._local import fit as fit
from ._local import fit_head as fit_head
from ._local import sgd as sgd
from ._neural_collapse import collapse_metrics as collapse_metrics
from ._neural_collapse import neural_collapse as neural_collapse
from ._neural_collapse import neural_collapse_step as neural_collapse_step
from ._parts import chosen as chosen
from ._standalone import StandAlone as StandAlone
from ._strategy import Client as Client
from ._strategy import Cohort as Cohort
from ._strategy import Strategy as Strategy
from ._strategy import Sum as Sum
from ._strategy import Update as Update
from ._strategy import average as average
from ._strategy import weighted as weighted
from ._train import train as train
