"""Unmask rules that draw random numbers: MaskGit and CoinFlip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lastword.canvas.canvas import Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import MaskChoice, ScheduledRule, UnmaskTraits, topk_mask
from lastword.policies.unmask.schedule import Cosine, Schedule, Timesteps
from lastword.validation import check_number, check_type, checked_field


@dataclass(frozen=True)
class MaskGit(ScheduledRule):
    """Fill the masks with the highest log-probability plus noise, which decreases from pass to pass.

    The noise in pass t of T is `choice_temperature` * (1 - t / T) * Gumbel noise. MaskGIT (Chang et al., 2022): early
    passes choose almost at random, the last by confidence alone. With `choice_temperature=0` this is MostConfident.
    Noise is drawn for the valid columns of each row, so a row draws the same numbers in any batch.
    """

    name = "maskgit"
    source = "MaskGIT (Chang et al., 2022)"
    traits = UnmaskTraits(follows_schedule=True)

    schedule: Schedule = checked_field(Cosine(), check_type, Schedule, "a schedule, such as Cosine()")
    choice_temperature: float = checked_field(4.5, check_number, minimum=0)

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        score = prediction.confidence.double().clamp(min=0).log()
        score = score + self._noise(prediction, open_masks, clock)
        # An open mask with a candidate of probability 0 still ranks before columns that are not open masks.
        score = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~open_masks, -torch.inf)
        return topk_mask(score, self.quota(open_masks, clock)) & open_masks, state

    def _noise(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock) -> Float[Tensor, "B S"]:
        steps = self.schedule.row_steps(clock.masks_at_start)
        scale = self.choice_temperature * (1 - (clock.in_window + 1).double() / steps).clamp(min=0)
        scale = scale.masked_fill(~open_masks.any(-1), 0)[:, None]
        drawn = prediction.canvas.valid & (scale > 0)
        uniform = prediction.generators.uniform_at(drawn, torch.float64).clamp(min=1e-300)
        noise = torch.where(drawn, -scale * torch.log(-torch.log(uniform)), 0)
        return prediction.columns.gather(noise)


@dataclass(frozen=True)
class CoinFlip(ScheduledRule):
    """Fill each mask with the probability of the time schedule: the textbook reverse process.

    A pass may fill no mask; the last pass fills all. It is Dream's default, but no published result uses it.
    """

    name = "coin-flip"
    source = "Dream origin (Ye et al., 2025)"
    traits = UnmaskTraits(follows_schedule=True, uses_model=False)

    schedule: Timesteps = checked_field(Timesteps(), check_type, Timesteps, "Timesteps()")

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        share = torch.tensor(self.schedule.share(clock), dtype=torch.float32, device=open_masks.device)
        return open_masks & (prediction.generators.uniform_at(open_masks) < share[:, None]), state
