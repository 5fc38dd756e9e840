"""Generators of the papers' problems, as pure functions of a key."""

from ._copying import Copying as Copying
from ._copying import Sequences as Sequences
from ._copying import copying_mask as copying_mask
from ._copying import masked_accuracy as masked_accuracy
from ._exact import SharedSubspace as SharedSubspace
from ._exact import SubspaceProblem as SubspaceProblem
from ._federation import Federation as Federation
from ._federation import Split as Split
from ._federation import scaled as scaled
from ._files import LabelledImages as LabelledImages
from ._images import digits as digits
from ._images import read_images as read_images
from ._linear import MultiResponse as MultiResponse
from ._linear import Problem as Problem
from ._linear import ols as ols
from ._partition import ByGroup as ByGroup
from ._partition import Dirichlet as Dirichlet
from ._partition import Scheme as Scheme
from ._partition import Shards as Shards
from ._partition import partition as partition
from ._plot import plot_partition as plot_partition
from ._shared import LinearTasks as LinearTasks
from ._shared import TaskProblem as TaskProblem
