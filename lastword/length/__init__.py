"""How long: policies that size the canvas."""

from lastword.length.daedal import Daedal
from lastword.length.fixed import Fixed
from lastword.length.policy import LengthPolicy, Plan, Probe
from lastword.length.stop_at_end import StopAtEnd
from lastword.length.survival import Survival

__all__ = ["Daedal", "Fixed", "LengthPolicy", "Plan", "Probe", "StopAtEnd", "Survival"]
