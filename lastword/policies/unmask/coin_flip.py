"""CoinFlip: Dream's `origin` algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.policies.unmask.schedule import Timesteps
from lastword.validation import check_type, checked_field


@dataclass(frozen=True)
class CoinFlip(UnmaskRule):
    """Fill every mask with a probability given by the time schedule: the textbook reverse process.

    A pass may fill none; the last pass fills all. Dream's default, though no published number uses it.
    """

    name = "coin-flip"
    cost_summary = "as many passes as the schedule says"
    source = "Dream origin (Ye et al., 2025)"

    schedule: Timesteps = checked_field(Timesteps(), check_type, Timesteps, "Timesteps()")

    traits = UnmaskTraits(follows_schedule=True, uses_model=False)

    def max_passes(self, masks: int) -> int:
        return self.schedule.steps(masks)

    def choose(
        self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        share = torch.tensor(self.schedule.share(clock), dtype=torch.float32, device=open_masks.device)
        return open_masks & (prediction.generators.uniform_at(open_masks) < share[:, None]), state
