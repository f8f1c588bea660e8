"""MaskGit: the surest masks, with noise that fades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.ranked import topk_mask
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.policies.unmask.schedule import Cosine, Schedule
from lastword.validation import check_number, check_type


@dataclass(frozen=True)
class MaskGit(UnmaskRule):
    """Fill where log-probability plus `noise` * (1 - t / T) * Gumbel noise is highest, in pass t of T.

    MaskGIT (Chang et al., 2022): early passes choose almost at random, the last by confidence alone.
    `noise=0` is MostConfident. The noise is drawn per row over the row's own columns, so a row
    draws the same in any batch.
    """

    name: ClassVar[str] = "maskgit"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022)"

    schedule: Schedule = Cosine()
    choice_temperature: float = 4.5

    def __post_init__(self) -> None:
        check_type("MaskGit", "schedule", self.schedule, Schedule, "a schedule, such as Cosine()")
        check_number("MaskGit", "choice_temperature", self.choice_temperature, minimum=0)

    traits = UnmaskTraits(follows_schedule=True)

    def max_passes(self, masks: int) -> int:
        return self.schedule.steps(masks)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        score = prediction.confidence.double().clamp(min=0).log()
        score = score + self._noise(prediction, open, clock)
        # A candidate of probability 0 is still an open mask, and ranks before the closed ones.
        score = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~open, -torch.inf)
        return topk_mask(score, self.schedule.quota(open.sum(-1), clock)) & open, state

    def _noise(self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock) -> Float[Tensor, "B S"]:
        steps = self.schedule.row_steps(clock.masks_at_start)
        scale = self.choice_temperature * (1 - (clock.in_window + 1).double() / steps).clamp(min=0)
        scale = scale.masked_fill(~open.any(-1), 0)[:, None]
        own = prediction.canvas.valid & (scale > 0)
        uniform = prediction.generators.uniform_at(own, torch.float64).clamp(min=1e-300)
        noise = torch.where(own, -scale * torch.log(-torch.log(uniform)), 0)
        return prediction.columns.gather(noise)
