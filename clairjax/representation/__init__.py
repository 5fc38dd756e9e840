"""Shared linear representations: y = xᵀ B w_i with one basis B and a head w_i for each client."""

from ._centaur import centaur as centaur
from ._fedrep import fedrep as fedrep
from ._flute import flute as flute
from ._initialise import moment_basis as moment_basis
from ._linear import LinearClients as LinearClients
from ._linear import Representation as Representation
from ._linear import mean_distance as mean_distance
from ._perturbed import PerturbedMoments as PerturbedMoments
from ._perturbed import perturbed_least_squares as perturbed_least_squares
from ._power_method import PrivateBasis as PrivateBasis
from ._power_method import PrivatePowerMethod as PrivatePowerMethod
from ._power_method import private_power_method as private_power_method
from ._private import PrivateRepresentation as PrivateRepresentation
from ._references import alternating_least_squares as alternating_least_squares
from ._references import best_of_rank as best_of_rank
from ._references import local_least_squares as local_least_squares
from ._references import local_ridge as local_ridge
from ._ridge import RidgeRepresentation as RidgeRepresentation
from ._ridge import truncated_ridge as truncated_ridge
