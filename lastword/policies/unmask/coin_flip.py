"""CoinFlip: Dream `origin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.policies.unmask.schedule import Timesteps
from lastword.validation import check_type


@dataclass(frozen=True)
class CoinFlip(UnmaskRule):
    """A coin for every mask, its bias set by the time schedule: the textbook reverse process.

    A pass may fill none; the last pass fills all. Dream's default, though no published number
    uses it.
    """

    name: ClassVar[str] = "coin-flip"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "Dream origin (Ye et al., 2025)"

    schedule: Timesteps = Timesteps()

    def __post_init__(self) -> None:
        check_type("CoinFlip", "schedule", self.schedule, Timesteps, "Timesteps()")

    traits = UnmaskTraits(follows_schedule=True, uses_model=False)

    def max_passes(self, masks: int) -> int:
        return self.schedule.steps(masks)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        share = torch.tensor(self.schedule.share(clock), dtype=torch.float32, device=open.device)
        return open & (prediction.generators.uniform_at(open) < share[:, None]), state
