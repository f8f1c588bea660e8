"""Schedules: the number of masks to fill in each pass."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.validation import Part, check_choice, check_number, checked_field

MIN_TOKENS_PER_STEP = 1e-3
TOLERANCE = 1e-9  # keeps 32 / 3.2 at 10 where floating point makes it 10.000000000000002


@dataclass(frozen=True)
class Schedule(Part):
    """A rule for the number of masks that each pass of a window fills: `tokens_per_step` on average.

    The reference implementations take a total number of steps instead, which does not shrink with the canvas; S steps
    for a canvas of N tokens are `tokens_per_step` = N / S.
    """

    capturable: ClassVar[bool] = False  # whether `quota` can run inside a CUDA graph

    tokens_per_step: float = checked_field(1.0, check_number, minimum=MIN_TOKENS_PER_STEP)

    def steps(self, masks: int) -> int:
        """Return the number of passes of a window that started with `masks` masks."""
        return max(1, math.ceil(masks / self.tokens_per_step - TOLERANCE))

    def row_steps(self, masks: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """Return the number of passes of each row's window, which started with `masks` masks."""
        return (masks.double() / self.tokens_per_step - TOLERANCE).ceil().clamp(1, 2**53).long()

    @abstractmethod
    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        """Return how many of each row's `remaining` open masks to fill in this pass."""


@dataclass(frozen=True)
class EqualShares(Schedule):
    """Split the masks of a window evenly over its passes; the first passes take the remainder.

    As LLaDA's `get_num_transfer_tokens`: 32 masks in 10 passes give 4, 4, then 3 eight times.
    """

    name = "equal-shares"
    cost_summary = "at most masks / tokens_per_step forward passes"
    source = "LLaDA (Nie et al., 2025)"
    capturable = True

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        masks, step = clock.masks_at_start, clock.in_window
        steps = self.row_steps(masks)
        share = masks // steps + (step < masks % steps)
        # Masks are left after the last step only if the model proposed the mask token: fill all of them.
        return torch.minimum(torch.where(step < steps, share, masks), remaining)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Fill few masks at first, then more: after pass t of T, floor(N cos(pi t / 2T)) of N masks are left.

    MaskGIT (Chang et al., 2022). Every pass fills at least one mask and, except for the last, leaves at least one.
    MaskGIT writes a token into every mask and then masks all but the best of them again; tokens of earlier passes
    stay, so filling only the best masks gives the same result. One exception: if a single mask is left before the last
    pass, MaskGIT keeps it until then, and this schedule fills it at once.
    """

    name = "cosine"
    cost_summary = "at most masks / tokens_per_step forward passes"
    source = "MaskGIT (Chang et al., 2022)"
    capturable = True

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        passes, steps = clock.in_window + 1, self.row_steps(clock.masks_at_start)
        share = torch.cos(math.pi * passes.double() / (2 * steps))
        # The tolerance keeps 78 cos(pi / 3) at 39 in spite of rounding errors.
        left = (clock.masks_at_start * share + TOLERANCE).floor().clamp(min=1).long()
        left = left.masked_fill(passes >= steps, 0)
        return torch.minimum((remaining - left).clamp(min=1), remaining)


MIN_EPS = 1e-9  # the smallest `eps` that float32 distinguishes from 0 in `_shares`


@dataclass(frozen=True)
class Timesteps(Schedule):
    """Fill a share 1 - s/t of the remaining masks in the pass from time t to s; times fall evenly from 1 to `eps`.

    The number of masks is rounded down, so some passes fill nothing: one pass for 256 masks in 256 steps, 514 passes
    for 512 masks in 1024 steps. They are skipped, and the tokens are still those of the reference code. To reproduce a
    seeded run of that code, set `keep_idle=True`: passes that fill nothing draw random numbers too.
    """

    name = "timesteps"
    cost_summary = "at most masks / tokens_per_step forward passes"
    source = "Dream (Ye et al., 2025)"

    eps: float = checked_field(1e-3, check_number, minimum=MIN_EPS, below=1)
    keep_idle: bool = checked_field(False, check_choice, True, False)

    def share(self, clock: Clock) -> list[float]:
        """Return the share of its remaining masks that each row's step fills; 1 from the last step on."""
        shares = [_shares(self.steps(masks), self.eps) for masks in clock.masks_at_start.tolist()]
        return [float(row[min(step, len(row) - 1)]) for row, step in zip(shares, clock.in_window.tolist())]

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        if self.keep_idle:
            shares = zip(remaining.tolist(), self.share(clock))
            counts = [int(np.float32(left) * np.float32(share)) for left, share in shares]
        else:
            counts = []
            for masks, step in zip(clock.masks_at_start.tolist(), clock.in_window.tolist()):
                plan = _nonzero_counts(masks, self.steps(masks), self.eps)
                counts.append(plan[step] if step < len(plan) else masks)
        return torch.minimum(torch.tensor(counts, device=remaining.device), remaining)


@lru_cache(maxsize=4096)
def _shares(steps: int, eps: float) -> np.ndarray:
    # float32 as in the reference code: float64 gives other counts for one length in eight.
    times = torch.linspace(1, eps, steps + 1, dtype=torch.float32)
    shares = (1 - times[1:] / times[:-1]).numpy()
    shares[-1] = 1.0
    return shares


@lru_cache(maxsize=4096)
def _nonzero_counts(masks: int, steps: int, eps: float) -> tuple[int, ...]:
    """Return the number of masks that each pass fills, without the passes that fill none."""
    counts = []
    for share in _shares(steps, eps):
        count = int(np.float32(masks) * share)
        masks -= count
        if count:
            counts.append(count)
    return tuple(counts)
