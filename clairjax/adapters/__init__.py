"""Adapters that other tools wrote: PEFT's LoRA folders in, a verdict and refined folders out. Public as `adapters`."""

from ._adapters import Adapters as Adapters
from ._adapters import from_states as from_states
from ._adapters import load as load
from ._choose import choose as choose
from ._command import Command as Command
from ._command import command as command
from ._compare import compare as compare
from ._compare import comparison as comparison
from ._folder import State as State
from ._hand_out import HandOut as HandOut
from ._hand_out import hand_out as hand_out
from ._hand_out import state as state
from ._options import check_options as check_options
from ._out import check_out as check_out
from ._out import check_report as check_report
from ._refine import Refinement as Refinement
from ._refine import refine as refine
from ._report import VERDICTS as VERDICTS
from ._report import report as report
from ._save import candidates as candidates
from ._save import save as save
from ._verdict import ClientVerdict as ClientVerdict
from ._verdict import Finding as Finding
