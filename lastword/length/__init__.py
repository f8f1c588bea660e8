"""How long: policies that size the canvas."""

from lastword.length.budget import Budget
from lastword.length.calibrated import Calibrated
from lastword.length.daedal import Daedal
from lastword.length.fixed import Fixed
from lastword.length.grow_when_full import GrowWhenFull
from lastword.length.policy import LengthPolicy, Plan, Probe, Resizes
from lastword.length.reread import Reread
from lastword.length.rho_eos import RhoEos
from lastword.length.secant import Secant
from lastword.length.stop_at_end import StopAtEnd
from lastword.length.survival import Survival
from lastword.length.survival_at_step import SurvivalAtStep

__all__ = [
    "Budget",
    "Calibrated",
    "Daedal",
    "Fixed",
    "GrowWhenFull",
    "LengthPolicy",
    "Plan",
    "Probe",
    "Reread",
    "Resizes",
    "RhoEos",
    "Secant",
    "StopAtEnd",
    "Survival",
    "SurvivalAtStep",
]
