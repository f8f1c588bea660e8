"""Turns: rows that open a block and rows within one take turns, so that the latter keep one shape."""

from __future__ import annotations

from collections.abc import Sequence

from lastword.memory.memory import Memory
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.forward import Forward
from lastword.passes.hooks import Hooks
from lastword.slots.captured import Captured, graphs_of
from lastword.slots.rows import Rows, Stage
from lastword.slots.stepper import Seen, Stepper

OPENINGS = 4  # rows that open wait until they are one to so many of those within a block


class Turns:
    """Steps in which either the rows that open a block take part, or those within one.

    An opening computes whole rows, each of its own length, and is wide enough to keep a GPU busy. A pass
    within a block computes as many columns of every row: it can be captured once and replayed.
    """

    def __init__(self, stepper: Stepper, model: MaskPredictor, *, replay: bool) -> None:
        self._stepper, self._model, self._replay = stepper, model, replay
        self._captured: Captured | None = None

    def __call__(self, rows: Rows, stages: Sequence[Stage]) -> tuple[Rows, Seen | None]:
        if self._stepper.memory is None:
            self._stepper.memory = self._memory(rows)
        opens, within = stages.count(Stage.OPENING), stages.count(Stage.WITHIN)
        if OPENINGS * opens >= within:
            return self._stepper(rows, rows.clock.opening & rows.canvas.masked.any(-1))
        if not self._replays:
            return self._stepper.within(rows)
        if self._captured is None:
            self._captured = self._capture(rows)
        if self._captured.reason is not None:
            return self._stepper.within(rows)
        return self._captured(rows), None

    @property
    def _replays(self) -> bool:
        return self._replay and self._model.device.type == "cuda"

    def _memory(self, rows: Rows) -> Memory | None:
        """One of this decoding, or the one that the model's graphs read and write."""
        cache, shape = self._stepper.recipe.cache, tuple(rows.canvas.tokens.shape)
        if not self._replays:
            return cache.open(rows.canvas)
        return graphs_of(self._model).memory((cache, shape), lambda: cache.open(rows.canvas))

    def _capture(self, rows: Rows) -> Captured:
        recipe, canvas = self._stepper.recipe, rows.canvas
        drawing = Dice(
            [0] * len(canvas.horizon)
        )  # what draws is not captured, and draws nothing here
        forward = Forward(self._model, recipe.sampling, drawing)
        alone = Stepper(recipe, forward, Hooks(), self._stepper.memory)
        key = (recipe, *canvas.tokens.shape, canvas.start, rows.most is None)
        return graphs_of(self._model).captured(key, lambda own: alone.within(own)[0], rows)
