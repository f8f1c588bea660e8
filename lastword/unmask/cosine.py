"""Cosine: MaskGIT's schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.unmask.schedule import Schedule


@dataclass(frozen=True)
class Cosine(Schedule):
    """Few masks first, more and more later: after pass t of T, floor(N cos(pi t / 2T)) are left.

    MaskGIT (Chang et al., 2022). Every pass fills at least one and, but for the last, leaves at least
    one. MaskGIT proposes a token for every mask and masks again all but the surest; what it kept
    before is never masked again, so to write the others only, as we do, is the same. Where one mask is
    left too early, MaskGIT waits for the last pass; ours fills it.
    """

    price: ClassVar[str] = "masks / pace passes"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022)"

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        left = [
            self._left(opened, step + 1)
            for opened, step in zip(clock.opened.tolist(), clock.in_window.tolist())
        ]
        return torch.minimum((remaining - torch.tensor(left)).clamp(min=1), remaining)

    def _left(self, opened: int, passes: int) -> int:
        """Masks to be left after so many passes."""
        steps = self.steps(opened)
        if passes >= steps:
            return 0
        # The tolerance keeps 78 cos(pi / 3) at 39, whichever side floating point puts it on.
        return max(1, math.floor(opened * math.cos(math.pi * passes / (2 * steps)) + 1e-9))
