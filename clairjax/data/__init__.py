"""Generators of the papers' problems, as pure functions of a key."""

from ._exact import SharedSubspace as SharedSubspace
from ._exact import SubspaceProblem as SubspaceProblem
from ._linear import MultiResponse as MultiResponse
from ._linear import Problem as Problem
from ._linear import ols as ols
from ._shared import LinearTasks as LinearTasks
from ._shared import TaskProblem as TaskProblem
