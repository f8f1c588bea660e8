"""EntropyBound: the EB-Sampler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits, first_ranked, rank_columns
from lastword.validation import check_choice, check_number, checked_field


@dataclass(frozen=True)
class EntropyBound(UnmaskRule):
    """Fill the best masks as long as their entropies, without the largest, sum to at most `gamma` nats.

    The EB-Sampler (Ben-Hamu et al., 2025): the sum bounds the error of drawing the tokens independently.
    Masks are ranked by `order` (`entropy`, `confidence` or `margin`); the bound always uses the entropy.
    gamma = 0 fills one mask and every certain one.
    """

    name = "entropy-bound"
    cost_summary = "fewer passes the surer the model is; a token a pass at worst"
    source = "EB-Sampler (Ben-Hamu et al., 2025, arXiv 2505.24857)"

    gamma: float = checked_field(0.1, check_number, minimum=0)
    order: str = checked_field("entropy", check_choice, "entropy", "confidence", "margin")

    traits = UnmaskTraits(capturable=True)

    def choose(
        self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        if self.order == "entropy":
            score = -prediction.entropy
        else:
            score = prediction.confidence if self.order == "confidence" else prediction.margin
        order = rank_columns(score.masked_fill(~open_masks, -torch.inf))
        # Rounding makes the entropy of certain tokens slightly negative; the bound must not fall.
        entropy = prediction.entropy.clamp(min=0).gather(1, order)
        bound = entropy.cumsum(-1) - entropy.cummax(-1).values
        fits = (bound <= self.gamma) & open_masks.gather(1, order)
        count = fits.long().cumprod(-1).sum(-1)  # at least one: the bound of the first is 0
        return first_ranked(order, count), state
