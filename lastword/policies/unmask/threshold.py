"""Unmask rules of Fast-dLLM and the EB-Sampler, which fill several masks per pass where the model is confident."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.unmask.rule import (
    MaskChoice,
    UnmaskRule,
    UnmaskTraits,
    choose,
    first_ranked,
    rank_columns,
    topk_mask,
    visible_columns,
)
from lastword.validation import check_choice, check_number, check_type, checked_field


@dataclass(frozen=True)
class AboveThreshold(UnmaskRule):
    """Fill every mask whose candidate has probability `threshold` or more, and always the most likely one.

    Fast-dLLM (Wu et al., 2025): n tokens of probability above 1 - e with (n + 1) e <= 1 are the tokens that greedy
    decoding would write one by one. A threshold of 1 fills one token per pass. DAEDAL and rho-EOS fill tokens strictly
    above the threshold.

    `max_tokens_per_step` caps the average number of tokens per pass: what a pass does not use is added to later
    passes. Fast-dLLM's Dream sampler without a cache has such a cap, N / steps, which its paper does not mention; it
    rounds N / steps down and therefore leaves masks unfilled, which this rule does not.
    """

    name = "threshold"
    cost_summary = "at most one forward pass per token"
    source = "Fast-dLLM (Wu et al., 2025)"
    traits = UnmaskTraits(capturable=True)

    threshold: float = checked_field(0.9, check_number, above=0, maximum=1)
    max_tokens_per_step: float | None = checked_field(None, check_number, minimum=1)

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        confidence = prediction.confidence.masked_fill(~open_masks, -torch.inf)
        # float32 rounds a probability of 1 - 1e-8 to 1, hence the second condition.
        passing = (confidence >= self.threshold) & (self.threshold < 1)
        if self.max_tokens_per_step is not None:
            # The tolerance keeps the product from falling below a whole number by rounding.
            allowed = (self.max_tokens_per_step * (clock.in_window + 1).double() + 1e-9).long()
            filled = clock.masks_at_start - open_masks.sum(-1)
            passing = passing & topk_mask(confidence, allowed - filled)
        return topk_mask(confidence, open_masks.any(-1).long()) | passing, state


@dataclass(frozen=True)
class Factor(UnmaskRule):
    """Fill the n most likely candidates as long as the n-th has probability 1 - factor / (n + 1) or more.

    The required probability rises with every token filled in the same pass, as in the bound of AboveThreshold.
    The most likely candidate is always filled. If only the last candidate is not likely enough, Fast-dLLM's loop fills
    all of them; this rule leaves the last one masked.
    """

    name = "factor"
    cost_summary = "at most one forward pass per token"
    source = "Fast-dLLM (Wu et al., 2025), later versions"
    traits = UnmaskTraits(capturable=True)

    factor: float = checked_field(1.0, check_number, above=0)

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        confidence = prediction.confidence.masked_fill(~open_masks, -torch.inf)
        order = rank_columns(confidence)
        ordered = confidence.gather(1, order)
        required = 1 - self.factor / torch.arange(2, ordered.shape[1] + 2, device=order.device)
        passing = (ordered >= required).long().cumprod(-1).sum(-1)
        count = torch.maximum(passing, open_masks.any(-1).long())
        return first_ranked(order, count) & open_masks, state


@dataclass(frozen=True)
class EntropyBound(UnmaskRule):
    """Fill the best masks as long as their entropies, without the largest, sum to at most `gamma` nats.

    The EB-Sampler (Ben-Hamu et al., 2025): the sum bounds the error of drawing the tokens independently. Masks are
    ranked by `order` (`entropy`, `confidence` or `margin`); the bound always uses the entropy. `gamma=0` fills
    every certain mask and one more.
    """

    name = "entropy-bound"
    cost_summary = "at most one forward pass per token"
    source = "EB-Sampler (Ben-Hamu et al., 2025, arXiv 2505.24857)"
    traits = UnmaskTraits(capturable=True)

    gamma: float = checked_field(0.1, check_number, minimum=0)
    order: str = checked_field("entropy", check_choice, "entropy", "confidence", "margin")

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        score = -prediction.entropy if self.order == "entropy" else getattr(prediction, self.order)
        order = rank_columns(score.masked_fill(~open_masks, -torch.inf))
        # Rounding may make the entropy of certain tokens slightly negative, which would lower the bound.
        entropy = prediction.entropy.clamp(min=0).gather(1, order)
        bound = entropy.cumsum(-1) - entropy.cummax(-1).values
        fits = (bound <= self.gamma) & open_masks.gather(1, order)
        count = fits.long().cumprod(-1).sum(-1)  # at least one: the bound of the first is 0
        return first_ranked(order, count), state


@dataclass(frozen=True)
class LeftmostFirst(UnmaskRule):
    """Fill only the leftmost mask in the first pass of a block; then follow the rule `unmask`.

    The block-wise scripts of Fast-dLLM do this on Dream (Wu et al., 2025), however unlikely the token is: Dream
    predicts a token from the column before it, and their cache does not recompute that column within a block. This
    library recomputes it, so the rule only serves to reproduce their numbers. A schedule of `unmask` still counts the
    first pass of the block, as in those scripts.
    """

    name = "leftmost-first"
    cost_summary = "about one more forward pass per block"
    source = "Fast-dLLM on Dream"

    unmask: UnmaskRule = checked_field(
        AboveThreshold(), check_type, UnmaskRule, "an unmask rule, such as AboveThreshold(0.9)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.unmask, LeftmostFirst):
            raise SettingError(
                "LeftmostFirst was put around LeftmostFirst, which changes nothing; give the inner rule alone"
            )

    @property
    def traits(self) -> UnmaskTraits:
        return self.unmask.traits

    def max_passes(self, masks: int) -> int | None:
        # A schedule with several masks per pass may need another pass for those that the first pass did not fill.
        passes = self.unmask.max_passes(masks)
        return passes if passes is None or passes >= masks else passes + 1

    def initial_state(self, canvas: Canvas) -> State:
        return self.unmask.initial_state(canvas)

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        return visible_columns(self.unmask, canvas, clock, state)

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        leftmost = open_masks & (open_masks.cumsum(-1) == 1)
        later, state = choose(self.unmask, prediction, open_masks, clock, state)
        return leftmost.where(clock.block_start[:, None], later), state
