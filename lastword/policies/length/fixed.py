"""Fixed: the canvas everyone uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lastword.policies.length.policy import (
    LengthPolicy,
    LengthTraits,
    ModelLimits,
    Plan,
    Probe,
    check_optional_slots,
    resolved_slots,
)


@dataclass(frozen=True)
class Fixed(LengthPolicy):
    """`slots` masks for every prompt; without a number, as many as the model is made for. No probe."""

    name: ClassVar[str] = "fixed"
    cost_summary: ClassVar[str] = "no probe; every pass as wide as the canvas"
    source: ClassVar[str] = "LLaDA (Nie et al., 2025), Dream (Ye et al., 2025)"

    slots: int | None = None

    def __post_init__(self) -> None:
        check_optional_slots("Fixed", "slots", self.slots)

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(min_slots=self.slots or 1, capturable=True)

    def resolved(self, limits: ModelLimits) -> Fixed:
        return replace(self, slots=limits.resolve(self.slots))

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.num_rows,), resolved_slots(self, self.slots)))
