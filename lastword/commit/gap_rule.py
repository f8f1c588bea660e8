"""GapRule: the shape shared by early-commit rules. Commit once the best tokens lead by enough."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.checks import check_choice
from lastword.commit.rule import CommitRule
from lastword.passes.prediction import Prediction


@dataclass(frozen=True)
class GapRule(CommitRule):
    """Ready when the lead of the best token over the second, averaged over a span, reaches a bar.

    The bar falls with progress: the share of a row's slots that passes have filled once this one has
    written its own choices. The peers count step / steps, which is the same number where every pass
    fills an equal share, and the only one that means anything once lengths vary.

    `measure="gap"` takes the lead in raw logits (log-odds, unbounded: one very sure column can
    carry the others, and guidance stretches it); `measure="margin"` takes it in probabilities, as
    the sampling judges them, against tanh(bar / 2), which is the same lead if no third token has a
    chance. Columns already filled count; columns a cache kept from this pass do not.
    """

    measure: str = "gap"

    def __post_init__(self) -> None:
        check_choice(type(self).__name__, "measure", self.measure, "gap", "margin")

    @abstractmethod
    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        """The columns whose lead is averaged."""

    @abstractmethod
    def bar(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """The lead asked for, in logits."""

    def given(self, canvas: Canvas, clock: Clock) -> Int[Tensor, "B"]:
        """Written slots of each row that are no work done, as long as this window is open."""
        return torch.zeros_like(canvas.horizon)

    def lead(self, prediction: Prediction, canvas: Canvas) -> Float[Tensor, "B"]:
        """The mean lead over the span, -inf where this pass read none of it."""
        span = prediction.columns.at(self.span(canvas))
        lead = prediction.gap if self.measure == "gap" else prediction.margin
        total = lead.masked_fill(~span, 0).sum(-1) / span.sum(-1).clamp(min=1)
        return total.masked_fill(~span.any(-1), -torch.inf)

    def ready(self, prediction: Prediction, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B"]:
        slots = canvas.fillable.sum(-1)
        filled = slots - canvas.masked.sum(-1) - self.given(canvas, clock)
        bar = self.bar(filled.double() / slots)
        if self.measure == "margin":
            bar = torch.tanh(bar / 2)
        return self.lead(prediction, canvas) >= bar
