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
    """The next pass that a row needs, or its error."""

    DONE = 0  # nothing: no mask is left
    IN_BLOCK = 1  # a pass inside its block
    BLOCK_START = 2  # the pass that starts its next block
    INVALID_LOGITS = 3  # an error to raise: a pass gave no best token for the row
    NO_CHOICE = 4  # an error to raise: the unmask rule chose no mask and never would


@dataclass(frozen=True, eq=False)
class BatchState:
    """Everything a step reads and returns. Rows can be selected, replaced and ended between steps."""

    canvas: Canvas
    clock: Clock  # of the next step
    rule_state: State  # of the unmask rule
    length_state: State  # of the length policy
    max_new_tokens: Int[Tensor, "B"] | None  # a cap per row; None: no row is capped
    cost: BatchCost
    phase: Int[Tensor, "B"]  # as Phase

    def with_rows(self, index: Int[Tensor, "A"], new: BatchState) -> BatchState:
        """Return the state with the rows at `index` replaced by `new`."""
        width = max(self.canvas.width, new.canvas.width)
        old, new = self.widened(width), new.widened(width)
        if (old.max_new_tokens is None) != (new.max_new_tokens is None):
            old, new = old._capped(), new._capped()
        return tree_map(lambda tensor, other: tensor.index_copy(0, index, other), old, new)

    def with_rows_ended(self, index: Int[Tensor, "A"]) -> BatchState:
        """Return the state with the rows at `index` ended before they are finished."""
        canvas = replace(self.canvas, abandoned=self.canvas.abandoned.index_fill(0, index, True))
        return replace(self, canvas=canvas, phase=self.phase.index_fill(0, index, int(Phase.DONE)))

    def select(self, index: Int[Tensor, "A"]) -> BatchState:
        """Return the state of some rows."""
        return tree_map(lambda tensor: tensor.index_select(0, index), self)

    def widened(self, width: int) -> BatchState:
        """Return the state on a canvas of `width` columns."""
        if self.canvas.width == width:
            return self
        return replace(self, canvas=self.canvas.widened(width))

    def _capped(self) -> BatchState:
        if self.max_new_tokens is not None:
            return self
        return replace(self, max_new_tokens=torch.full_like(self.canvas.horizon, MAX_SLOTS))


def phase_of(canvas: Canvas, clock: Clock, fault: Int[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
    """Return the phase of every row, given the clock of the next step and the faults of a static pass."""
    phase = (1 + clock.block_start.long()) * canvas.masked.any(-1)
    return phase if fault is None else torch.where(fault > 0, fault, phase)


def check_canvas(returned: object, part: object) -> Canvas:
    """Return what a part returned if it is a canvas."""
    if not isinstance(returned, Canvas):
        raise WrongTypeError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `prepare` must return a canvas, "
            "and "
            "`revise` a canvas and a state"
        )
    return returned
