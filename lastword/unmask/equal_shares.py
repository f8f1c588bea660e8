"""EqualShares: LLaDA's schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.unmask.schedule import Schedule


@dataclass(frozen=True)
class EqualShares(Schedule):
    """The window's masks split evenly over its passes; the remainder goes to the first ones.

    LLaDA's `get_num_transfer_tokens`: 32 masks in 10 passes are 4, 4, then 3 eight times.
    """

    name: ClassVar[str] = "equal-shares"
    price: ClassVar[str] = "masks / pace passes"
    source: ClassVar[str] = "LLaDA (Nie et al., 2025)"

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        opened, step = clock.opened, clock.in_window
        steps = self.steps_of(opened)
        share = opened // steps + (step < opened % steps)
        # Behind the last step only where the model proposed masks: finish what is left.
        return torch.minimum(torch.where(step < steps, share, opened), remaining)
