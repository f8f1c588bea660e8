"""Timesteps: Dream's schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.checks import check_choice, check_number
from lastword.unmask.schedule import Schedule

LEAST_TIME = 1e-9  # float32 still tells it from 0


@dataclass(frozen=True)
class Timesteps(Schedule):
    """A share 1 - s/t of the remaining masks, for times falling evenly from 1 to `eps`.

    The share is rounded down, so some passes fill nothing: one for 256 tokens in 256 steps, 514 for
    512 in 1024. A pass that fills nothing changes nothing, so we skip it, and the tokens stay
    those of the authors. `keep_idle` runs it all the same: needed to repeat a seeded run of
    theirs, since drawing is not idle.
    """

    name: ClassVar[str] = "timesteps"
    price: ClassVar[str] = "masks / pace passes, less those that fill nothing"
    source: ClassVar[str] = "Dream (Ye et al., 2025)"

    eps: float = 1e-3
    keep_idle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Timesteps", "eps", self.eps, least=LEAST_TIME, below=1)
        check_choice("Timesteps", "keep_idle", self.keep_idle, True, False)

    def share(self, clock: Clock) -> list[float]:
        """1 - s/t at each row's step; 1 from the last step on."""
        shares = []
        for opened, step in zip(clock.opened.tolist(), clock.in_window.tolist()):
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
            for opened, step in zip(clock.opened.tolist(), clock.in_window.tolist()):
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
