"""LocalLeap: next to something certain, fairly sure is sure enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.ranked import topk_mask
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.validation import check_int, check_number


@dataclass(frozen=True)
class LocalLeap(UnmaskRule):
    """Fill what is at least `threshold` likely, and within `radius` columns of it what is `relaxed` likely.

    LocalLeap (Kong et al., 2025): anchors are masks of this pass, not words that stand. The likeliest
    mask is filled in any case. With `relaxed` equal to `threshold` it is AboveThreshold.
    """

    name: ClassVar[str] = "local-leap"
    cost_summary: ClassVar[str] = "fewer passes the surer the model is; a token a pass at worst"
    source: ClassVar[str] = "LocalLeap (Kong et al., 2025, arXiv 2510.07081)"

    threshold: float = 0.9
    relaxed_threshold: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        check_number("LocalLeap", "threshold", self.threshold, above=0, maximum=1)
        check_number(
            "LocalLeap", "relaxed_threshold", self.relaxed_threshold, above=0, maximum=self.threshold
        )
        check_int("LocalLeap", "radius", self.radius, minimum=0)

    traits = UnmaskTraits(capturable=True)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        confidence = prediction.confidence.masked_fill(~open, -torch.inf)
        anchors = prediction.columns.scatter(confidence >= self.threshold)
        around = torch.nn.functional.max_pool1d(
            anchors.float()[:, None], 2 * self.radius + 1, stride=1, padding=self.radius
        )
        near = prediction.columns.gather(around[:, 0] > 0)
        bar = torch.where(near, self.relaxed_threshold, self.threshold)
        return (confidence >= bar) | topk_mask(confidence, open.any(-1).long()), state
