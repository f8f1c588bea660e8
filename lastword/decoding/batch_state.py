"""The state of the rows of a batch between two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import BatchCost
from lastword.canvas.tree import State, tree_map
from lastword.errors import WrongTypeError
from lastword.validation import MAX_SLOTS


class Phase(IntEnum):
    """What a row waits for."""

    DONE = 0  # nothing: no mask is left
    IN_BLOCK = 1  # a pass within its block
    BLOCK_START = 2  # the pass that opens its next block
    INVALID_LOGITS = 3  # an error to be raised: a pass had no best token for it
    NO_CHOICE = 4  # an error to be raised: its rule chose no mask and never would


@dataclass(frozen=True, eq=False)
class BatchState:
    """Rows between two steps. A step makes new ones of them; rows can be taken, merged and replaced."""

    canvas: Canvas
    clock: Clock  # of the step to come
    rule_state: State
    length_state: State
    max_new_tokens: Int[Tensor, "B"] | None  # slots no row may exceed; None: nobody bounds them
    cost: BatchCost
    phase: Int[Tensor, "B"]  # what every row waits for, as Stage

    def with_rows(self, index: Int[Tensor, "A"], new: BatchState) -> BatchState:
        """The same with other rows at `index`."""
        width = max(self.canvas.width, new.canvas.width)
        old, new = self.widened(width), new.widened(width)
        if (old.max_new_tokens is None) != (new.max_new_tokens is None):
            old, new = old._bounded(), new._bounded()
        return tree_map(lambda own, other: own.index_copy(0, index, other), old, new)

    def with_rows_ended(self, index: Int[Tensor, "A"]) -> BatchState:
        """The same with the rows at `index` given up as they stand."""
        abandoned = self.canvas.abandoned.index_fill(0, index, True)
        canvas = replace(self.canvas, abandoned=abandoned)
        return replace(self, canvas=canvas, phase=self.phase.index_fill(0, index, int(Phase.DONE)))

    def _bounded(self) -> BatchState:
        if self.max_new_tokens is not None:
            return self
        return replace(self, max_new_tokens=torch.full_like(self.canvas.horizon, MAX_SLOTS))

    def select(self, index: Int[Tensor, "A"]) -> BatchState:
        """Some of the rows."""
        return tree_map(lambda old: old.index_select(0, index), self)

    def widened(self, width: int) -> BatchState:
        """The same rows on a canvas of so many columns."""
        if self.canvas.width == width:
            return self
        return replace(self, canvas=self.canvas.widened(width))


def phase_of(canvas: Canvas, clock: Clock, fault: Int[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
    """What rows wait for, given the clock of the step to come and errors that were found."""
    waiting = (1 + clock.block_start.long()) * canvas.masked.any(-1)
    return waiting if fault is None else torch.where(fault > 0, fault, waiting)


def check_canvas(returned: object, part: object) -> Canvas:
    """What a part returned, if it is a canvas."""
    if not isinstance(returned, Canvas):
        raise WrongTypeError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `prepare` returns a canvas, and "
            "`revise` a canvas and a state"
        )
    return returned
