"""Fixed: the same number of slots for every prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan, Probe, resolved_slots
from lastword.validation import check_int, checked_field


@dataclass(frozen=True)
class Fixed(LengthPolicy):
    """Plan `slots` slots for every prompt (unset: as many as the model is made for), without a probe."""

    name = "fixed"
    cost_summary = "no probe; every pass as wide as the canvas"
    source = "LLaDA (Nie et al., 2025), Dream (Ye et al., 2025)"

    slots: int | None = checked_field(None, check_int, minimum=1)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(min_slots=self.slots or 1, capturable=True)

    def resolved(self, limits: ModelLimits) -> Fixed:
        return replace(self, slots=limits.resolve(self.slots))

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.slots)))
