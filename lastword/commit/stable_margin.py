"""StableMargin: commit once the whole answer is decided (after SchED)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.checks import check_number
from lastword.commit.gap_rule import GapRule
from lastword.errors import SettingError


@dataclass(frozen=True)
class StableMargin(GapRule):
    """Fill everything when the lead, averaged over the whole answer, reaches a bar that falls.

    For free-form text, where no few columns are the answer. After SchED (arXiv 2512.02892), of which we
    know the abstract only: margins over the full span, a smooth threshold that falls with progress, no
    training. Everything else is ours, and no number of theirs should be expected: the plain mean over
    all slots, filled ones included; the straight line from `start` to `end`; progress as the share of
    slots filled; Prophet's 7.5 and 2.5 as its two ends. Costs the vocabulary head on the whole
    answer, no pass.
    """

    name: ClassVar[str] = "stable-margin"
    price: ClassVar[str] = (
        "logits of the whole answer in every pass; saves the passes after the commit"
    )
    source: ClassVar[str] = "after the abstract of SchED (arXiv 2512.02892)"

    start: float = 7.5
    end: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("StableMargin", "end", self.end, least=0)
        check_number("StableMargin", "start", self.start, least=0)
        if self.start < self.end:
            raise SettingError(
                f"StableMargin(start={self.start!r}, end={self.end!r}) was given; the bar falls, so start "
                "must not be below end"
            )

    def span(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        return canvas.fillable

    def bar(self, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        return self.start + (self.end - self.start) * progress
