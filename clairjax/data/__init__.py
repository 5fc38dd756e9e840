"""Generators of the papers' problems, as pure functions of a key."""

from ._linear import MultiResponse as MultiResponse
from ._linear import Problem as Problem
from ._linear import ols as ols
