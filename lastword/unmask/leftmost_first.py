"""LeftmostFirst: a block's first pass fills its first mask alone (Fast-dLLM on Dream)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.errors import SettingError
from lastword.passes.prediction import Prediction
from lastword.unmask.above_threshold import AboveThreshold
from lastword.unmask.rule import UnmaskRule


@dataclass(frozen=True)
class LeftmostFirst(UnmaskRule):
    """When a block opens, fill its leftmost mask and nothing else; from then on follow `unmask`.

    What Fast-dLLM's block files do on Dream (Wu et al., 2025), however unsure the model is of that
    token. The output before a block predicts its first column, so with a cache that column is out of
    reach once the full pass is over; filling it at once avoids the question. We do not need it: a
    pass that reads the first column recomputes the one before it, one column more. Use it to repeat
    their numbers; a schedule below it still counts the block's first pass, as theirs does.
    """

    price: ClassVar[str] = "about one pass more per block"
    source: ClassVar[str] = "Fast-dLLM on Dream (Wu et al., 2025)"

    unmask: UnmaskRule = AboveThreshold()

    def __post_init__(self) -> None:
        if not isinstance(self.unmask, UnmaskRule):
            raise SettingError(
                f"LeftmostFirst(unmask={self.unmask!r}) was given; it wraps an unmask rule, such as "
                "AboveThreshold(0.9)"
            )

    @property
    def follows_schedule(self) -> bool:
        return self.unmask.follows_schedule

    def most_passes(self, masks: int) -> int:
        # A schedule that fills several in a pass is late by what its first pass left.
        passes = self.unmask.most_passes(masks)
        return passes if passes >= masks else passes + 1

    @property
    def counts_passes(self) -> bool:
        return self.unmask.counts_passes

    @property
    def heeds_model(self) -> bool:
        return self.unmask.heeds_model

    @property
    def drops_columns(self) -> bool:
        return self.unmask.drops_columns

    def sees(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return self.unmask.sees(canvas, clock)

    def fresh(self) -> UnmaskRule:
        twin = self.unmask.fresh()
        return self if twin is self.unmask else replace(self, unmask=twin)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B L"], clock: Clock
    ) -> Bool[Tensor, "B L"]:
        leftmost = open & (open.cumsum(-1) == 1)
        later = self.unmask.choose(prediction, open, clock)
        return leftmost.where(clock.opening[:, None], later)
