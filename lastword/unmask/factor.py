"""Factor: Fast-dLLM's later rule, a bar that rises with every token filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.clock import Clock
from lastword.canvas.state import State
from lastword.checks import check_number
from lastword.passes.prediction import Prediction
from lastword.unmask.ranked import leading, ranking
from lastword.unmask.rule import UnmaskRule


@dataclass(frozen=True)
class Factor(UnmaskRule):
    """Fill the n likeliest candidates as long as the n-th is at least 1 - factor / (n + 1) likely.

    The bar rises with every token filled beside the others, as the bound behind AboveThreshold asks.
    The first always passes. Fast-dLLM's loop fills all candidates when only the last one fails; ours
    stops before it.
    """

    name: ClassVar[str] = "factor"
    price: ClassVar[str] = "fewer passes the surer the model is; a token a pass at worst"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025), later versions"

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("Factor", "factor", self.factor, above=0)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        confidence = prediction.confidence.masked_fill(~open, -torch.inf)
        order = ranking(confidence)
        ordered = confidence.gather(1, order)
        bar = 1 - self.factor / torch.arange(2, ordered.shape[1] + 2, device=order.device)
        passing = (ordered >= bar).long().cumprod(-1).sum(-1)
        count = torch.maximum(passing, open.any(-1).long())
        return leading(order, count) & open, state
