"""StopAtEnd: a finished block with an end token ends the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.state import State
from lastword.length.policy import LengthTraits
from lastword.length.wrapper import Wrapper
from lastword.passes.prediction import Prediction


@dataclass(frozen=True)
class StopAtEnd(Wrapper):
    """Plan with `length`; when a block is complete and holds an end token, drop what lies behind it.

    Costs nothing, needs left-to-right blocks, and is the cheapest length control there is (DPad,
    dInfer and others have it built in). It looks at complete blocks only: an end token may be written
    before the text to its left. With one block for the whole canvas it would change nothing, so a recipe
    that gives no block has blocks of 32.
    """

    name: ClassVar[str] = "stop-at-end"
    price: ClassVar[str] = "nothing; saves every pass behind the end"
    source: ClassVar[str] = "built into DPad, dInfer and others"

    traits = LengthTraits(resizes="between blocks", needs_blocks=True)

    def revise(
        self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State
    ) -> tuple[Canvas, State]:
        canvas, state = super().revise(canvas, prediction, clock, state)
        block = clock.window.columns(canvas.width) & canvas.answer
        done = ~(block & canvas.masked).any(-1) & (block & canvas.ended).any(-1)
        horizon = torch.where(done, clock.window.last - canvas.start, canvas.horizon)
        return canvas.crop(horizon), state
