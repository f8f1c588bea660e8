"""Wrapper: a length policy around another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Bool
from torch import Tensor

from lastword.calibration.ratios import Calibration
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.errors import SettingError
from lastword.length.policy import LengthPolicy, Plan, Probe, Resizes, more_often
from lastword.length.survival import Survival
from lastword.passes.prediction import Prediction


@dataclass(frozen=True)
class Wrapper(LengthPolicy):
    """Plans as `length` does and changes a row between blocks, after `length` had its say."""

    length: LengthPolicy = Survival()

    def __post_init__(self) -> None:
        if not isinstance(self.length, LengthPolicy):
            raise SettingError(
                f"{type(self).__name__}(length={self.length!r}) was given; it wraps a length policy, such "
                "as Survival() or Fixed(1024)"
            )

    @property
    def reads_answer(self) -> bool:
        return self.length.reads_answer

    @property
    def resizes(self) -> Resizes:
        return more_often("between blocks", self.length.resizes)

    @property
    def inner(self) -> LengthPolicy:
        return self.length

    @property
    def plans_at_least(self) -> int:
        return self.length.plans_at_least

    def fitted(self, calibration: Calibration | None) -> LengthPolicy:
        return replace(self, length=self.length.fitted(calibration))

    def plan(self, probe: Probe) -> Plan:
        return self.length.plan(probe)

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock) -> Canvas:
        return self.length.revise(canvas, prediction, clock)

    def releases(
        self, ready: Bool[Tensor, "B"], canvas: Canvas, prediction: Prediction, clock: Clock
    ) -> Bool[Tensor, "B"]:
        """What acts between blocks can act on a row that was committed as well."""
        return self.length.releases(ready, canvas, prediction, clock)
