"""Clock: where each row stands in its current window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.window import Window


@dataclass(frozen=True, eq=False)
class Clock:
    """One tick per pass. Rows keep their own time, so a batch decodes each row as if alone."""

    step: int  # of decoding, from 0
    window: Window
    in_window: Int[Tensor, "B"]  # steps the row has already spent in this window
    opened: Int[Tensor, "B"]  # masks the window held when it opened
    opening: Bool[Tensor, "B"]  # is this the window's first pass?
    horizon: Int[Tensor, "B"] | None = None  # slots of the row's answer; None before any pass

    @classmethod
    def start(cls, rows: int) -> Clock:
        nowhere = torch.full((rows,), -1)
        zero = torch.zeros(rows, dtype=torch.long)
        return cls(-1, Window(nowhere, nowhere), zero, zero, zero.bool())

    def tick(self, canvas: Canvas, block: int | None) -> Clock:
        """The clock of the next pass. A new window opens, and so does one whose row was resized.

        A resized row holds other masks and, to the right of the change, other columns: quotas count
        anew and caches recompute it.
        """
        window = canvas.window(block)
        opening = (window.first != self.window.first) | (window.last != self.window.last)
        if self.horizon is not None:
            opening = opening | (canvas.horizon != self.horizon)
        masks = (canvas.masked & window.columns(canvas.width)).sum(-1)
        return Clock(
            self.step + 1,
            window,
            torch.where(opening, 0, self.in_window + 1),
            torch.where(opening, masks, self.opened),
            opening,
            canvas.horizon,
        )
