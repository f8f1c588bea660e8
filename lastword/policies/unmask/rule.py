"""The contract of unmask rules, and the rules of LLaDA and Dream that fill the highest-ranked masks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.canvas.columns import cached_arange
from lastword.canvas.contracts import call_part, check_unchanged, name_of, result_and_state, version_of
from lastword.canvas.tokens import check_tensor
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.unmask.schedule import EqualShares, Schedule
from lastword.validation import Part, check_int, check_temperature, check_type, checked_field

UNBOUNDED = 2**62  # more passes than any decoding has
MaskChoice = tuple[Bool[Tensor, "B S"], State]  # the masks to fill, and the state after the pass


@dataclass(frozen=True)
class UnmaskTraits:
    """The properties of an unmask rule on which other parts depend."""

    follows_schedule: bool = False  # whether a schedule ends each window, so that passes may fill nothing
    uses_model: bool = True  # whether predictions decide which masks are filled first
    hides_columns: bool = False  # whether `visible_columns` may omit columns, which outdates their cached states
    # Whether `choose` can run inside a CUDA graph: without host synchronisation, data-dependent shapes or random draws.
    capturable: bool = False


class UnmaskRule(Part):
    """A rule that chooses which masks to fill after a pass.

    Decoding must end: every pass fills at least one mask in each row that has open masks, or the rule follows a
    schedule whose last pass fills all open masks.
    """

    @property
    def traits(self) -> UnmaskTraits:
        return UnmaskTraits()

    def initial_state(self, canvas: Canvas) -> State:
        """Return the rule's state before the first step; () for a rule without state, as by default."""
        return ()

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        """Return the columns visible in the next pass, among them at least one open mask of every row that has any.

        Columns may be hidden at a row's end, but not between visible ones, because positions count visible columns.
        """
        return canvas.valid

    @abstractmethod
    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        """Return the masks to fill and the state after the pass.

        `open_masks` marks the masks in each row's window, among the columns that were read.
        """

    def max_passes(self, masks: int) -> int | None:
        """Return the most passes that a window of `masks` masks can take, whatever the model predicts.

        With a schedule, passes may fill nothing, so such a rule has to override this method. None means unknown.
        """
        return None if self.traits.follows_schedule else masks


MAX_PASSES_PER_MASK = 1000  # of a schedule; ours have at most as many


def max_passes(rule: UnmaskRule, masks: int) -> int | None:
    """Return the checked result of `rule.max_passes`."""
    passes: Any = rule.max_passes(masks)
    if passes is not None:
        maximum = MAX_PASSES_PER_MASK * max(1, masks)
        check_int(type(rule).__name__, f"max_passes({masks})", passes, minimum=min(masks, 1), maximum=maximum)
    return passes


def choose(
    rule: UnmaskRule, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State
) -> MaskChoice:
    """Return the checked result of `rule.choose`."""
    owner, version = name_of(rule, "choose"), version_of(open_masks)
    chosen, after = result_and_state(owner, rule.choose(prediction, open_masks, clock, state), state)
    check_unchanged(owner, open_masks, version)
    return check_tensor(f"{owner} returned", chosen, open_masks.shape, torch.bool, open_masks.device), after


def visible_columns(rule: UnmaskRule, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
    """Return the checked result of `rule.visible_columns`."""
    valid, owner = canvas.valid, name_of(rule, "visible_columns")
    visible = call_part(rule, "visible_columns", canvas, clock, state, like=valid, dtype=torch.bool)
    if visible is valid:
        return valid
    hidden = valid & ~visible
    has_gap = (hidden[:, :-1] & visible[:, 1:]).any(-1)
    has_no_mask = canvas.masked.any(-1) & ~(visible & canvas.masked & clock.window.columns(canvas.width)).any(-1)
    if bool((has_gap | has_no_mask | (visible & ~valid).any(-1)).any()) or not rule.traits.hides_columns:
        raise SettingError(
            f"{owner} returned columns that are no columns of a row, or hid columns before visible ones or all open "
            "masks of a row; it may hide columns at the end of a row, if the traits of the rule have hides_columns=True"
        )
    return visible


def max_idle_steps(rule: UnmaskRule, masks: int, device: torch.device) -> Int[Tensor, "M"]:
    """Return how many first passes in a window of m masks may fill nothing, for m = 0, 1, ... `masks`."""
    counts: list[int | None] = [0] * (masks + 1)
    if rule.traits.follows_schedule:
        counts = [max_passes(rule, count) for count in range(masks + 1)]
    return torch.tensor([UNBOUNDED if count is None else count for count in counts], device=device)


@dataclass(frozen=True)
class ScheduledRule(UnmaskRule):
    """A rule with a schedule, which sets the number of masks that each pass fills."""

    cost_summary = "set by the schedule"

    schedule: Schedule = checked_field(EqualShares(), check_type, Schedule, "EqualShares(), Timesteps() or Cosine()")

    def max_passes(self, masks: int) -> int:
        return self.schedule.steps(masks)

    def quota(self, open_masks: Bool[Tensor, "B S"], clock: Clock) -> Int[Tensor, "B"]:
        """Return the checked number of masks that the schedule fills in each row."""
        remaining = open_masks.sum(-1)
        return call_part(self.schedule, "quota", remaining, clock, like=remaining, dtype=torch.long)


@dataclass(frozen=True)
class RankedRule(ScheduledRule):
    """Fill the masks with the highest scores, as many as the schedule allows.

    With `order_temperature` above 0 (Dream's `alg_temp`) masks are drawn instead, without replacement, from
    softmax(score / order_temperature).
    """

    order_temperature: float = checked_field(0.0, check_temperature)

    @property
    def traits(self) -> UnmaskTraits:
        capturable = self.order_temperature == 0 and self.schedule.capturable
        return UnmaskTraits(follows_schedule=True, capturable=capturable)

    @abstractmethod
    def score(self, prediction: Prediction) -> Float[Tensor, "B S"]:
        """Return the score of every column that was read; higher scores are filled first."""

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        quota = self.quota(open_masks, clock)
        score = self.score(prediction).masked_fill(~open_masks, -torch.inf)
        if self.order_temperature == 0:
            return topk_mask(score, quota) & open_masks, state
        return self._sample(score, quota, prediction), state

    def _sample(
        self, score: Float[Tensor, "B S"], quota: Int[Tensor, "B"], prediction: Prediction
    ) -> Bool[Tensor, "B S"]:
        # As in the reference code, all columns of the row have a weight: random draws depend on their number.
        scores = prediction.columns.scatter(score, -torch.inf)
        picked = torch.zeros_like(scores, dtype=torch.bool)
        for row, count in enumerate(quota.tolist()):
            if count:
                valid = prediction.canvas.valid[row].nonzero()[:, 0]
                weights = (scores[row, valid] / self.order_temperature).softmax(-1)
                count = min(count, int((weights > 0).sum()))
                drawn = prediction.generators.multinomial(row, weights, count, replace=False)
                picked[row, valid[drawn.cpu()]] = True
        chosen = prediction.columns.gather(picked)
        # A low temperature rounds the weights of unlikely masks to 0; these are added in order of score.
        missing = quota - chosen.sum(-1)
        return chosen | topk_mask(score.masked_fill(chosen, -torch.inf), missing)


def topk_mask(score: Float[Tensor, "B S"], count: Int[Tensor, "B"]) -> Bool[Tensor, "B S"]:
    """Return True at the `count` highest scores of each row, and False elsewhere; of equal scores, the leftmost."""
    if score.is_cpu and not bool((count > 1).any()):  # the usual case; sorting a large batch is slower
        first = score.argmax(-1, keepdim=True)  # of equal scores the leftmost, which a GPU does not guarantee
        return (torch.arange(score.shape[1]) == first) & (count[:, None] > 0)
    return first_ranked(rank_columns(score), count)


def rank_columns(score: Float[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Return the columns of each row by descending score; of equal scores, the leftmost first."""
    return score.argsort(dim=-1, descending=True, stable=True)


def first_ranked(order: Int[Tensor, "B S"], count: Int[Tensor, "B"]) -> Bool[Tensor, "B S"]:
    """Return True at the first `count` columns of each row's ranking, and False elsewhere."""
    chosen = cached_arange(order.shape[1], order.device) < count[:, None]
    return torch.zeros_like(chosen).scatter(1, order, chosen)


@dataclass(frozen=True)
class MostConfident(RankedRule):
    """Fill the masks with the most likely candidates.

    LLaDA names the rule after the masks that it does not fill (`low_confidence`), Dream after its source
    (`maskgit_plus`, after MaskGIT, Chang et al., 2022).
    """

    name = "most-confident"
    source = "MaskGIT (Chang et al., 2022), LLaDA, Dream"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.confidence


@dataclass(frozen=True)
class LargestMargin(RankedRule):
    """Fill the masks where the best token leads the second best by the largest margin."""

    name = "largest-margin"
    source = "Kim et al., 2025; Dream topk_margin"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return prediction.margin


@dataclass(frozen=True)
class LowestEntropy(RankedRule):
    """Fill the masks with the lowest entropy of the prediction, as in Dream's published results."""

    name = "lowest-entropy"
    source = "Dream entropy (Ye et al., 2025)"

    def score(self, prediction: Prediction) -> Float[Tensor, "B L"]:
        return -prediction.entropy


@dataclass(frozen=True)
class AtRandom(RankedRule):
    """Fill random masks, as many as the schedule allows: the baseline of all rules."""

    name = "at-random"
    source = "LLaDA random (Nie et al., 2025)"
    traits = UnmaskTraits(follows_schedule=True, uses_model=False)

    def score(self, prediction: Prediction) -> Float[Tensor, "B S"]:
        columns = prediction.columns
        drawn = prediction.canvas.valid & columns.read.any(-1, keepdim=True)
        return columns.gather(prediction.generators.uniform_at(drawn))
