"""StopAtEnd: a row whose answer is complete is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.columns import first_true
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.policies.length.policy import LengthTraits
from lastword.policies.length.wrapper import Wrapper


@dataclass(frozen=True)
class StopAtEnd(Wrapper):
    """Plan with `length`; once no mask is left before the first end token, drop what lies behind it.

    What lies behind the first end token is no text, so the row is done: no mask is left, and it takes part
    in no further pass. Costs nothing, and is the cheapest length control there is (DPad, dInfer and others
    have it built in, by whole blocks). An end token may be written before the text to its left, which is
    then waited for. In one block for the whole canvas it mostly is, so that little would be saved: a
    recipe that gives no block has blocks of 32.
    """

    name: ClassVar[str] = "stop-at-end"
    cost_summary: ClassVar[str] = "nothing; saves every pass behind the end"
    source: ClassVar[str] = "built into DPad, dInfer and others"

    traits = LengthTraits(resizes="between blocks", needs_blocks=True, capturable=True)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        end = first_true(canvas.ended)
        done = end < first_true(canvas.masked)
        return canvas.crop(torch.where(done, end + 1 - canvas.start, canvas.horizon)), state
