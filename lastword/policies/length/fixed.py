"""Fixed: the same number of slots for every prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan, Probe, resolved_slots
from lastword.validation import check_int, checked_field


@dataclass(frozen=True)
class Fixed(LengthPolicy):
    """Plan `slots` slots for every prompt, by default the model's `default_max_new_tokens`."""

    name = "fixed"
    cost_summary = "no probe; all slots in every forward pass"
    source = "LLaDA, Dream"

    slots: int | None = checked_field(None, check_int, minimum=1)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(min_slots=self.slots or 1, capturable=True)

    def resolved(self, limits: ModelLimits) -> Fixed:
        return replace(self, slots=limits.resolve(self.slots))

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.slots)))
