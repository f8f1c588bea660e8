"""Rules that rank the masks and fill as many as a schedule says."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.columns import cached_arange
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.policies.unmask.schedule import EqualShares, Schedule
from lastword.validation import check_temperature, check_type


@dataclass(frozen=True)
class RankedRule(UnmaskRule):
    """Fill the masks with the highest score, as many as the schedule says.

    With `order_temperature` above 0 (Dream's `alg_temp`) they are drawn instead, without
    replacement, from softmax(score / order_temperature).
    """

    schedule: Schedule = EqualShares()
    order_temperature: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_type(name, "schedule", self.schedule, Schedule, "EqualShares(), Timesteps() or Cosine()")
        check_temperature(name, "order_temperature", self.order_temperature)

    @property
    def traits(self) -> UnmaskTraits:
        capturable = self.order_temperature == 0 and self.schedule.capturable
        return UnmaskTraits(follows_schedule=True, capturable=capturable)

    def max_passes(self, masks: int) -> int:
        return self.schedule.steps(masks)

    @abstractmethod
    def score(self, prediction: Prediction) -> Float[Tensor, "B S"]:
        """Higher is filled sooner."""

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        quota = self.schedule.quota(open.sum(-1), clock)
        score = self.score(prediction).masked_fill(~open, -torch.inf)
        if self.order_temperature == 0:
            return topk_mask(score, quota) & open, state
        return self._drawn(score, quota, prediction), state

    def _drawn(
        self, score: Float[Tensor, "B S"], quota: Int[Tensor, "B"], prediction: Prediction
    ) -> Bool[Tensor, "B S"]:
        # The authors draw among all columns of the row: so many weights, so many numbers.
        every = prediction.columns.scatter(score, -torch.inf)
        picked = torch.zeros_like(every, dtype=torch.bool)
        for row, count in enumerate(quota.tolist()):
            if count:
                own = prediction.canvas.valid[row].nonzero()[:, 0]
                weights = (every[row, own] / self.order_temperature).softmax(-1)
                likely = min(count, int((weights > 0).sum()))
                drawn = prediction.generators.multinomial(row, weights, likely, replace=False)
                picked[row, own[drawn.cpu()]] = True
        chosen = prediction.columns.gather(picked)
        # A low temperature rounds the weight of unlikely masks to 0; they follow in order of score.
        missing = quota - chosen.sum(-1)
        return chosen | topk_mask(score.masked_fill(chosen, -torch.inf), missing)


def topk_mask(score: Float[Tensor, "B S"], count: Int[Tensor, "B"]) -> Bool[Tensor, "B S"]:
    """The `count` highest scores of each row; of equal scores, the leftmost."""
    if score.is_cpu and not bool((count > 1).any()):  # the usual pace: no need to sort a large batch
        first = score.argmax(-1, keepdim=True)  # the leftmost, which a GPU does not promise
        return (torch.arange(score.shape[1]) == first) & (count[:, None] > 0)
    return first_ranked(rank_columns(score), count)


def rank_columns(score: Float[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """The columns of each row, highest score first; of equal scores, the leftmost."""
    return score.argsort(dim=-1, descending=True, stable=True)


def first_ranked(order: Int[Tensor, "B S"], count: Int[Tensor, "B"]) -> Bool[Tensor, "B S"]:
    """The first `count` columns of each row's ranking, as a mask."""
    taken = cached_arange(order.shape[1], order.device) < count[:, None]
    return torch.zeros_like(taken).scatter(1, order, taken)


@dataclass(frozen=True)
class MostConfident(RankedRule):
    """Fill where the candidate is likeliest.

    LLaDA names the rule for what stays masked (`low_confidence`), Dream for its source
    (`maskgit_plus`, after MaskGIT, Chang et al., 2022).
    """

    name: ClassVar[str] = "most-confident"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "MaskGIT (Chang et al., 2022); LLaDA low_confidence, Dream maskgit_plus"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.confidence


@dataclass(frozen=True)
class LargestMargin(RankedRule):
    """Fill where the best token leads the second best by most (Kim et al., 2025)."""

    name: ClassVar[str] = "largest-margin"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "Kim et al., 2025; Dream topk_margin"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.margin


@dataclass(frozen=True)
class LowestEntropy(RankedRule):
    """Fill where the distribution is least spread: the order behind Dream's published numbers."""

    name: ClassVar[str] = "lowest-entropy"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "Dream entropy (Ye et al., 2025)"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return -prediction.entropy


@dataclass(frozen=True)
class AtRandom(RankedRule):
    """Fill a fixed count of masks, anywhere. The baseline every order should beat."""

    name: ClassVar[str] = "at-random"
    cost_summary: ClassVar[str] = "as many passes as the schedule says"
    source: ClassVar[str] = "LLaDA random (Nie et al., 2025)"

    traits = UnmaskTraits(follows_schedule=True, uses_model=False)

    def score(self, prediction: Prediction) -> Float[Tensor, "B S"]:
        columns = prediction.columns
        own = prediction.canvas.valid & columns.read.any(-1, keepdim=True)
        return columns.gather(prediction.generators.uniform_at(own))
