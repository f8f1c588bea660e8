"""The state of the rows of a batch between two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.canvas.cost import Cost
from lastword.canvas.tree import State, each
from lastword.errors import WrongTypeError
from lastword.validation import MOST_SLOTS


class Stage(IntEnum):
    """What a row waits for."""

    DONE = 0  # nothing: no mask is left
    WITHIN = 1  # a pass within its block
    OPENING = 2  # the pass that opens its next block
    NO_TOKEN = 3  # an error to be raised: a pass had no best token for it
    NO_CHOICE = 4  # an error to be raised: its rule chose no mask and never would


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows between two steps. A step makes new ones of them; rows can be taken, merged and replaced."""

    canvas: Canvas
    clock: Clock  # of the step to come
    rule: State
    length: State
    most: Int[Tensor, "B"] | None  # slots no row may exceed; None: nobody bounds them
    cost: Cost
    stage: Int[Tensor, "B"]  # what every row waits for, as Stage

    def replaced(self, index: Int[Tensor, "A"], new: Rows) -> Rows:
        """The same with other rows at `index`."""
        width = max(self.canvas.width, new.canvas.width)
        old, new = self.widened(width), new.widened(width)
        if (old.most is None) != (new.most is None):
            old, new = old._bounded(), new._bounded()
        return each(lambda own, other: own.index_copy(0, index, other), old, new)

    def ended(self, index: Int[Tensor, "A"]) -> Rows:
        """The same with the rows at `index` given up as they stand."""
        given_up = self.canvas.given_up.index_fill(0, index, True)
        canvas = replace(self.canvas, given_up=given_up)
        return replace(self, canvas=canvas, stage=self.stage.index_fill(0, index, int(Stage.DONE)))

    def _bounded(self) -> Rows:
        if self.most is not None:
            return self
        return replace(self, most=torch.full_like(self.canvas.horizon, MOST_SLOTS))

    def taken(self, index: Int[Tensor, "A"]) -> Rows:
        """Some of the rows."""
        return each(lambda old: old.index_select(0, index), self)

    def widened(self, width: int) -> Rows:
        """The same rows on a canvas of so many columns."""
        if self.canvas.width == width:
            return self
        return replace(self, canvas=self.canvas.widened(width))


def staged(canvas: Canvas, clock: Clock, fault: Int[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
    """What rows wait for, given the clock of the step to come and errors that were found."""
    waiting = (1 + clock.opening.long()) * canvas.masked.any(-1)
    return waiting if fault is None else torch.where(fault > 0, fault, waiting)


def checked_canvas(returned: object, part: object) -> Canvas:
    """What a part returned, if it is a canvas."""
    if not isinstance(returned, Canvas):
        raise WrongTypeError(
            f"{type(part).__name__} returned a {type(returned).__name__}; `prepare` returns a canvas, and "
            "`revise` a canvas and a state"
        )
    return returned
