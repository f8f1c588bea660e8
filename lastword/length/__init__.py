"""How long: policies that size the canvas."""

from lastword.length.budget import Budget as Budget
from lastword.length.calibrated import Calibrated as Calibrated
from lastword.length.daedal import Daedal as Daedal
from lastword.length.fixed import Fixed as Fixed
from lastword.length.grow_when_full import GrowWhenFull as GrowWhenFull
from lastword.length.policy import LengthPolicy as LengthPolicy
from lastword.length.policy import Plan as Plan
from lastword.length.policy import Probe as Probe
from lastword.length.reread import Reread as Reread
from lastword.length.rho_eos import RhoEos as RhoEos
from lastword.length.secant import Secant as Secant
from lastword.length.stop_at_end import StopAtEnd as StopAtEnd
from lastword.length.survival import Survival as Survival
from lastword.length.survival_at_step import SurvivalAtStep as SurvivalAtStep
