"""What one function costs: compile and run time, FLOPs, bytes, memory, and a trace to look at."""

from ._profile import Profile as Profile
from ._profile import profile as profile
