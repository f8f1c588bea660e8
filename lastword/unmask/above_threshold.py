"""AboveThreshold: Fast-dLLM's parallel decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.checks import check_number
from lastword.clock import Clock
from lastword.prediction import Prediction
from lastword.unmask.ranked import best
from lastword.unmask.rule import UnmaskRule


@dataclass(frozen=True)
class AboveThreshold(UnmaskRule):
    """Fill every mask whose candidate is at least this likely, and the likeliest in any case.

    Fast-dLLM (Wu et al., 2025): n tokens each above 1 - e with (n + 1) e <= 1 are what greedy
    decoding one by one would write. A threshold of 1 fills one token a pass, but for certain ones.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        check_number("AboveThreshold", "threshold", self.threshold, above=0, most=1)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B L"], clock: Clock
    ) -> Bool[Tensor, "B L"]:
        confidence = prediction.confidence.masked_fill(~open, -torch.inf)
        one = open.any(-1).long()
        return best(confidence, one) | (confidence >= self.threshold)
