"""LocalLeap: a lower threshold next to masks that the model is certain about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import MaskChoice, UnmaskRule, UnmaskTraits, topk_mask
from lastword.validation import check_int, check_number, checked_field


@dataclass(frozen=True)
class LocalLeap(UnmaskRule):
    """Fill masks of confidence `threshold`, and of `relaxed_threshold` within `radius` columns of those.

    LocalLeap (Kong et al., 2025): the anchors are masks of this pass, not tokens already written. The most
    confident mask is always filled. With equal thresholds this is AboveThreshold.
    """

    name = "local-leap"
    cost_summary = "at most one forward pass per token"
    source = "LocalLeap (Kong et al., 2025, arXiv 2510.07081)"
    traits = UnmaskTraits(capturable=True)

    threshold: float = checked_field(0.9, check_number, above=0, maximum=1)
    relaxed_threshold: float = 0.75
    radius: int = checked_field(4, check_int, minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("LocalLeap", "relaxed_threshold", self.relaxed_threshold, above=0, maximum=self.threshold)

    def choose(self, prediction: Prediction, open_masks: Bool[Tensor, "B S"], clock: Clock, state: State) -> MaskChoice:
        confidence = prediction.confidence.masked_fill(~open_masks, -torch.inf)
        anchors = prediction.columns.scatter(confidence >= self.threshold)
        around = torch.nn.functional.max_pool1d(
            anchors.float()[:, None], 2 * self.radius + 1, stride=1, padding=self.radius
        )
        near = prediction.columns.gather(around[:, 0] > 0)
        threshold = torch.where(near, self.relaxed_threshold, self.threshold)
        return (confidence >= threshold) | topk_mask(confidence, open_masks.any(-1).long()), state
