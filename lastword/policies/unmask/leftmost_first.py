"""LeftmostFirst: a block's first pass fills its first mask alone (Fast-dLLM on Dream)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.validation import check_type


@dataclass(frozen=True)
class LeftmostFirst(UnmaskRule):
    """When a block opens, fill its leftmost mask and nothing else; from then on follow `unmask`.

    What Fast-dLLM's block files do on Dream (Wu et al., 2025), however unsure the model is of that
    token. The output before a block predicts its first column, so with a cache that column is out of
    reach once the full pass is over; filling it at once avoids the question. We do not need it: a
    pass that reads the first column recomputes the one before it, one column more. Use it to repeat
    their numbers; a schedule below it still counts the block's first pass, as theirs does.
    """

    name: ClassVar[str] = "leftmost-first"
    cost_summary: ClassVar[str] = "about one pass more per block"
    source: ClassVar[str] = "Fast-dLLM on Dream (Wu et al., 2025)"

    unmask: UnmaskRule = AboveThreshold()

    def __post_init__(self) -> None:
        check_type(
            "LeftmostFirst",
            "unmask",
            self.unmask,
            UnmaskRule,
            "an unmask rule, such as AboveThreshold(0.9)",
        )
        if isinstance(self.unmask, LeftmostFirst):
            raise SettingError(
                "LeftmostFirst was put around LeftmostFirst, which does nothing more: give the rule inside"
            )

    @property
    def traits(self) -> UnmaskTraits:
        return self.unmask.traits

    def max_passes(self, masks: int) -> int | None:
        # A schedule that fills several in a pass is late by what its first pass left.
        passes = self.unmask.max_passes(masks)
        return passes if passes is None or passes >= masks else passes + 1

    def initial_state(self, canvas: Canvas) -> State:
        return self.unmask.initial_state(canvas)

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        return self.unmask.visible_columns(canvas, clock, state)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        leftmost = open & (open.cumsum(-1) == 1)
        later, state = self.unmask.choose(prediction, open, clock, state)
        return leftmost.where(clock.block_start[:, None], later), state
