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

    name: ClassVar[str] = "cosine"
    price: ClassVar[str] = "masks / pace passes"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022)"

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        passes, steps = clock.in_window + 1, self.steps_of(clock.opened)
        share = torch.cos(math.pi * passes.double() / (2 * steps))
        # The tolerance keeps 78 cos(pi / 3) at 39, whichever side floating point puts it on.
        left = (clock.opened * share + 1e-9).floor().clamp(min=1).long()
        left = left.masked_fill(passes >= steps, 0)
        return torch.minimum((remaining - left).clamp(min=1), remaining)
