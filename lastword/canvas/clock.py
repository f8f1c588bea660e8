"""Clock: where each row stands in its decoding and in its current window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Window


@dataclass(frozen=True, eq=False)
class Clock:
    """One tick per step. Rows keep their own time, so a batch decodes each row as if alone."""

    step: Int[Tensor, "B"]  # of the row's decoding, from 0
    window: Window
    in_window: Int[Tensor, "B"]  # steps the row has already spent in this window
    masks_at_start: Int[Tensor, "B"]  # masks the window held when it opened
    block_start: Bool[Tensor, "B"]  # is this the window's first step?
    blocks_started: Int[Tensor, "B"]  # windows the row has opened, this one included
    horizon: Int[Tensor, "B"]  # slots of the row's answer

    @classmethod
    def start(cls, canvas: Canvas) -> Clock:
        """Before the first step."""
        before = torch.full_like(canvas.horizon, -1)
        zero = torch.zeros_like(before)
        return cls(before, Window(before, before), zero, zero, zero.bool(), zero, canvas.horizon)

    def tick(self, canvas: Canvas, block: int | None, active: Bool[Tensor, "B"] | None = None) -> Clock:
        """The clock of the next step. A new window opens, and so does one whose row was resized.

        A resized row holds other masks and, to the right of the change, other columns: quotas count
        anew and caches recompute it. A row whose turn it was not stands as it stood: so does its canvas.
        """
        window = canvas.window(block)
        opening = (window.first != self.window.first) | (window.last != self.window.last)
        opening = opening | (canvas.horizon != self.horizon)
        masks = (canvas.masked & window.columns(canvas.width)).sum(-1)
        passed = 1 if active is None else active
        return Clock(
            self.step + passed,
            window,
            torch.where(opening, 0, self.in_window + passed),
            torch.where(opening, masks, self.masks_at_start),
            opening if active is None else opening | (self.block_start & ~active),
            self.blocks_started + opening,
            canvas.horizon,
        )
