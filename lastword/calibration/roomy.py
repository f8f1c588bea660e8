"""Roomy: the canvas that answers are finished on while a model is calibrated, and the probe beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lastword.length import Survival
from lastword.length.policy import LengthTraits, Plan, Probe
from lastword.length.wrapper import Wrapper


@dataclass(frozen=True)
class Roomy(Wrapper):
    """Plan with `length`, and say what `survival` would have read: lengths are compared, not used."""

    name: ClassVar[str] = "roomy"
    price: ClassVar[str] = "one probe, for the record alone"
    source: ClassVar[str] = ""

    survival: Survival = Survival()

    traits = LengthTraits()

    def plan(self, probe: Probe) -> Plan:
        return replace(super().plan(probe), lengths=self.survival.lengths(probe))
