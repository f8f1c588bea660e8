"""The clock of a batch: how far each row has decoded, and how far it is in its current block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Window


@dataclass(frozen=True, eq=False)
class Clock:
    """Step counters per row. Rows count independently, so a row of a batch decodes as it would alone."""

    step: Int[Tensor, "B"]  # steps of the row, from 0
    window: Window  # the current block
    in_window: Int[Tensor, "B"]  # steps the row has spent in this block
    masks_at_start: Int[Tensor, "B"]  # masks in the block when it started
    block_start: Bool[Tensor, "B"]  # whether the next step is the first of the block
    blocks_started: Int[Tensor, "B"]  # blocks the row has started, this one included
    horizon: Int[Tensor, "B"]  # slots of the row's answer

    @classmethod
    def start(cls, canvas: Canvas) -> Clock:
        """Return the clock before the first step."""
        before = torch.full_like(canvas.horizon, -1)
        zero = torch.zeros_like(before)
        return cls(before, Window(before, before), zero, zero, zero.bool(), zero, canvas.horizon)

    def tick(self, canvas: Canvas, block: int | None, active: Bool[Tensor, "B"] | None = None) -> Clock:
        """Return the clock of the next step; only `active` rows advance (None: all).

        A block also starts anew when its row was resized: the row holds other masks and, to the right of the
        change, other columns, so schedules restart and caches recompute it.
        """
        window = canvas.window(block)
        block_start = (window.first != self.window.first) | (window.last != self.window.last)
        block_start = block_start | (canvas.horizon != self.horizon)
        masks = (canvas.masked & window.columns(canvas.width)).sum(-1)
        advanced = 1 if active is None else active
        return Clock(
            self.step + advanced,
            window,
            torch.where(block_start, 0, self.in_window + advanced),
            torch.where(block_start, masks, self.masks_at_start),
            block_start if active is None else block_start | (self.block_start & ~active),
            self.blocks_started + block_start,
            canvas.horizon,
        )
