"""Fixed: the canvas everyone uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from lastword.checks import check_whole
from lastword.length.policy import LengthPolicy, Plan, Probe


@dataclass(frozen=True)
class Fixed(LengthPolicy):
    """`slots` masks for every prompt. Costs no probe."""

    price: ClassVar[str] = "no probe; every pass as wide as the canvas"
    source: ClassVar[str] = "LLaDA (Nie et al., 2025), Dream (Ye et al., 2025)"

    slots: int = 1024

    def __post_init__(self) -> None:
        check_whole("Fixed", "slots", self.slots, least=1)

    @property
    def plans_at_least(self) -> int:
        return self.slots

    def plan(self, probe: Probe) -> Plan:
        return Plan(torch.full((probe.rows,), self.slots))
