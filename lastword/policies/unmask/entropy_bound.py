"""EntropyBound: the EB-Sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.ranked import first_ranked, rank_columns
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.validation import check_choice, check_number


@dataclass(frozen=True)
class EntropyBound(UnmaskRule):
    """Fill the surest masks as long as their entropies, less the largest, sum to at most `gamma` nats.

    The EB-Sampler (Ben-Hamu et al., 2025): the sum bounds what is lost by drawing the tokens
    independently. Which masks are surest is an error proxy of its own: `entropy`, `confidence` or
    `margin`; the bound always takes the entropy. gamma = 0 fills one mask and every certain one.
    """

    name: ClassVar[str] = "entropy-bound"
    cost_summary: ClassVar[str] = "fewer passes the surer the model is; a token a pass at worst"
    source: ClassVar[str] = "EB-Sampler (Ben-Hamu et al., 2025, arXiv 2505.24857)"

    gamma: float = 0.1
    order: str = "entropy"

    def __post_init__(self) -> None:
        check_number("EntropyBound", "gamma", self.gamma, minimum=0)
        check_choice("EntropyBound", "order", self.order, "entropy", "confidence", "margin")

    traits = UnmaskTraits(capturable=True)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        surest = {
            "entropy": lambda: -prediction.entropy,
            "confidence": lambda: prediction.confidence,
            "margin": lambda: prediction.margin,
        }[self.order]()
        surest = surest.masked_fill(~open, -torch.inf)
        order = rank_columns(surest)
        # Rounding leaves certain tokens a hair below zero; the bound must not fall along the row.
        entropy = prediction.entropy.clamp(min=0).gather(1, order)
        bound = entropy.cumsum(-1) - entropy.cummax(-1).values
        fits = (bound <= self.gamma) & open.gather(1, order)
        count = fits.long().cumprod(-1).sum(-1)  # at least one: the bound of the first is 0
        return first_ranked(order, count), state
