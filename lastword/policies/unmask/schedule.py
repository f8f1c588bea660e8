"""Schedules: how many masks to fill per step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.validation import check_choice, check_number

MIN_TOKENS_PER_STEP = 1e-3  # tokens a pass: nobody waits a thousand passes for one
TOLERANCE = 1e-9  # keeps 32 / 3.2 at 10 where floating point makes it 10.000000000000002


@dataclass(frozen=True)
class Schedule(ABC):
    """A pace in tokens per pass, turned into a count for each pass of a window.

    The authors' loops take a total number of steps, which does not shrink with the canvas; a pace
    does. Their `steps` for a canvas of N tokens is a pace of N / steps.
    """

    capturable: ClassVar[bool] = False  # whether `quota` can run inside a CUDA graph

    tokens_per_step: float = 1.0

    def __post_init__(self) -> None:
        check_number(
            type(self).__name__, "tokens_per_step", self.tokens_per_step, minimum=MIN_TOKENS_PER_STEP
        )

    def steps(self, masks: int) -> int:
        """How many passes a window that opened with `masks` masks takes."""
        return max(1, math.ceil(masks / self.tokens_per_step - TOLERANCE))

    def row_steps(self, masks: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The same for every row."""
        return (masks.double() / self.tokens_per_step - TOLERANCE).ceil().clamp(1, 2**53).long()

    @abstractmethod
    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        """How many of each row's `remaining` open masks to fill in this pass."""


@dataclass(frozen=True)
class EqualShares(Schedule):
    """The window's masks split evenly over its passes; the remainder goes to the first ones.

    LLaDA's `get_num_transfer_tokens`: 32 masks in 10 passes are 4, 4, then 3 eight times.
    """

    name: ClassVar[str] = "equal-shares"
    cost_summary: ClassVar[str] = "masks / pace passes"
    source: ClassVar[str] = "LLaDA (Nie et al., 2025)"
    capturable: ClassVar[bool] = True

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        opened, step = clock.masks_at_start, clock.in_window
        steps = self.row_steps(opened)
        share = opened // steps + (step < opened % steps)
        # Behind the last step only where the model proposed masks: finish what is left.
        return torch.minimum(torch.where(step < steps, share, opened), remaining)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Few masks first, more and more later: after pass t of T, floor(N cos(pi t / 2T)) are left.

    MaskGIT (Chang et al., 2022). Every pass fills at least one and, but for the last, leaves at least
    one. MaskGIT proposes a token for every mask and masks again all but the surest; what it kept
    before is never masked again, so to write the others only, as we do, is the same. Where one mask is
    left too early, MaskGIT waits for the last pass; ours fills it.
    """

    name: ClassVar[str] = "cosine"
    cost_summary: ClassVar[str] = "masks / pace passes"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022)"
    capturable: ClassVar[bool] = True

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        passes, steps = clock.in_window + 1, self.row_steps(clock.masks_at_start)
        share = torch.cos(math.pi * passes.double() / (2 * steps))
        # The tolerance keeps 78 cos(pi / 3) at 39, whichever side floating point puts it on.
        left = (clock.masks_at_start * share + 1e-9).floor().clamp(min=1).long()
        left = left.masked_fill(passes >= steps, 0)
        return torch.minimum((remaining - left).clamp(min=1), remaining)


MIN_EPS = 1e-9  # float32 still tells it from 0


@dataclass(frozen=True)
class Timesteps(Schedule):
    """A share 1 - s/t of the remaining masks, for times falling evenly from 1 to `eps`.

    The share is rounded down, so some passes fill nothing: one for 256 tokens in 256 steps, 514 for
    512 in 1024. A pass that fills nothing changes nothing, so we skip it, and the tokens stay
    those of the authors. `keep_idle` runs it all the same: needed to repeat a seeded run of
    theirs, since drawing is not idle.
    """

    name: ClassVar[str] = "timesteps"
    cost_summary: ClassVar[str] = "masks / pace passes, less those that fill nothing"
    source: ClassVar[str] = "Dream (Ye et al., 2025)"

    eps: float = 1e-3
    keep_idle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Timesteps", "eps", self.eps, minimum=MIN_EPS, below=1)
        check_choice("Timesteps", "keep_idle", self.keep_idle, True, False)

    def share(self, clock: Clock) -> list[float]:
        """1 - s/t at each row's step; 1 from the last step on."""
        shares = []
        for opened, step in zip(clock.masks_at_start.tolist(), clock.in_window.tolist()):
            row = _shares(self.steps(opened), self.eps)
            shares.append(float(row[min(step, len(row) - 1)]))
        return shares

    def quota(self, remaining: Int[Tensor, "B"], clock: Clock) -> Int[Tensor, "B"]:
        if self.keep_idle:
            counts = [
                int(np.float32(left) * np.float32(share))
                for left, share in zip(remaining.tolist(), self.share(clock))
            ]
        else:
            counts = []
            for opened, step in zip(clock.masks_at_start.tolist(), clock.in_window.tolist()):
                plan = _plan(opened, self.steps(opened), self.eps)
                counts.append(plan[step] if step < len(plan) else opened)
        return torch.minimum(torch.tensor(counts, device=remaining.device), remaining)


@lru_cache(maxsize=4096)
def _shares(steps: int, eps: float) -> np.ndarray:
    # float32, as the authors compute it: float64 plans other counts for one length in eight.
    times = torch.linspace(1, eps, steps + 1, dtype=torch.float32)
    shares = (1 - times[1:] / times[:-1]).numpy()
    shares[-1] = 1.0
    return shares


@lru_cache(maxsize=4096)
def _plan(masks: int, steps: int, eps: float) -> tuple[int, ...]:
    """The counts of all passes that fill something."""
    plan = []
    for share in _shares(steps, eps):
        count = int(np.float32(masks) * share)
        masks -= count
        if count:
            plan.append(count)
    return tuple(plan)
