"""Forward passes in fixed shapes, so that they can be captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from lastword.canvas.canvas import Canvas
from lastword.decoding.batch_state import BatchState, Phase
from lastword.decoding.cuda_graph import CapturedStep, graphs_of
from lastword.decoding.forward import Forward, Room
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import MIN_COLUMNS
from lastword.decoding.planning import PlannedRequest
from lastword.decoding.sampling import RowGenerators
from lastword.decoding.step import StepDetails, Stepper
from lastword.models.base import MaskPredictor
from lastword.models.storage import CacheStorage, PooledKVStorage
from lastword.policies.cache import NoCache

WIDTHS = 64  # answers are computed in multiples of so many columns, so that they share graphs
LEAVING = 32  # one row in so many may be done before any leaves: each time the host has work to do
OPENINGS = 4  # rows that open wait until they are one to so many of those within a block

# Steps of one shape before it is captured, which takes longer than some of them: passes over a lone row,
# over several rows, and openings of a lone row, of which an answer has few.
ALONE, TOGETHER, OPENED = 4, 4, 16


class PhaseScheduler:
    """Steps in which either the rows that open a block take part, or those within one.

    An opening computes whole rows, each of its own length, and is wide enough to keep a GPU busy. A pass
    within a block computes as many columns of every row: it can be captured once and replayed.
    """

    def __init__(
        self, stepper: Stepper, model: MaskPredictor, *, replay: bool, columns: int | None = None
    ) -> None:
        self._stepper, self._model, self._replay = stepper, model, replay
        self._columns = columns  # of a pool, in which rows reserve what they are likely to need
        self._held: bool | None = None  # the model's graphs; None: not asked for yet

    def __call__(
        self, rows: BatchState, stages: Sequence[Phase], tickets: Sequence[PlannedRequest] = ()
    ) -> tuple[BatchState, StepDetails | None]:
        """One step of some rows; `tickets` are what each began with."""
        stepper = self._stepper
        if isinstance(stepper.recipe.cache, NoCache):
            return self._alone(rows) if len(stages) == 1 else self._together(rows)
        if stepper.memory is None:
            stepper.memory = self._memory(rows)
        opens, within = stages.count(Phase.BLOCK_START), stages.count(Phase.IN_BLOCK)
        if OPENINGS * opens >= within:
            self._lend(rows, stages, tickets)
            if self._replays and len(stages) == 1:
                captured = self._opening(rows)
                if captured is not None:
                    return captured(rows, once=True), None
            return stepper(rows, rows.phase == Phase.BLOCK_START)
        if self._replays:
            captured = self._captured(rows, None, lambda s, own: s.within(own))
            if captured is not None:
                return captured(rows), None
        return stepper.within(rows)

    def _alone(self, rows: BatchState) -> tuple[BatchState, StepDetails | None]:
        """A pass over all of a lone row: captured once the row has kept its length for a while."""
        canvas = rows.canvas
        own = _own(canvas)
        if self._replays:
            key = (own.start, own.stop)
            captured = self._captured(rows, key, lambda s, these: s.alone(these, own), ALONE)
            if captured is not None:
                return captured(rows), None
        return self._stepper.alone(rows, own)

    def _together(self, rows: BatchState) -> tuple[BatchState, StepDetails | None]:
        """A pass over all of all rows; graphs are shared by rows that are about as long together."""
        canvas, at_work = rows.canvas, rows.phase > 0
        lengths = torch.stack((canvas.prompt_length, canvas.horizon)) * at_work
        prompts, answers, longest = torch.cat((lengths.sum(-1), lengths[1:].amax(-1))).tolist()
        slots = min(_multiple(longest, WIDTHS), canvas.width - canvas.start)
        read = min(answers, len(at_work) * (self._stepper.recipe.block or slots))
        room = Room(_rounded_to_step(prompts + answers, 4), _rounded_to_step(read, 2), slots)
        if self._replays:
            captured = self._captured(rows, room, lambda s, own: s.together(own, room), TOGETHER)
            if captured is not None:
                return captured(rows, least=max(1, len(at_work) // LEAVING)), None
        return self._stepper.together(rows, room)

    @property
    def _replays(self) -> bool:
        """Are graphs replayed? Not on a CPU, nor while another decoding of the model replays them."""
        if self._held is None:
            wanted = self._replay and self._model.device.type == "cuda"
            self._held = wanted and graphs_of(self._model).at_work.acquire(blocking=False)
        return self._held

    def close(self) -> None:
        """Leave the model's graphs to others."""
        if self._held:
            graphs_of(self._model).at_work.release()
        self._held = False

    def _memory(self, rows: BatchState) -> CacheStorage | None:
        """One of this decoding, or the one that the model's graphs read and write."""
        cache, shape = self._stepper.recipe.cache, tuple(rows.canvas.tokens.shape)

        def opened() -> CacheStorage | None:
            if self._columns is not None:
                return PooledKVStorage(len(rows.phase), rows.canvas.width, self._columns)
            return cache.open(rows.canvas)

        if not self._replays:
            return opened()
        return graphs_of(self._model).memory((cache, shape, self._columns), opened)

    def _lend(self, rows: BatchState, stages: Sequence[Phase], tickets: Sequence[PlannedRequest]) -> None:
        """Regions for the rows at work: what is reserved, or more for a row that has outgrown it.

        A pass may write beyond an answer's end, a block or as far as widths are rounded up.
        """
        memory, canvas = self._stepper.memory, rows.canvas
        if not isinstance(memory, PooledKVStorage):
            return
        before, spare = memory.grown, max(WIDTHS, self._stepper.recipe.block or 0)
        at_work = [row for row, stage in enumerate(stages) if stage is not Phase.DONE]
        for row in {*range(len(stages))} - {*at_work}:
            memory.end(row)
        lengths = [*zip(canvas.prompt_length.tolist(), canvas.horizon.tolist())]
        for row in at_work:
            prompt, horizon = lengths[row]
            slots = max(horizon, tickets[row].reserved_slots) + spare
            count = prompt + min(slots, canvas.width - canvas.start)
            memory.lend(row, canvas.start - prompt, count, to=tickets[row])
        if memory.grown > before and self._held:
            graphs_of(self._model).forget()

    def _opening(self, rows: BatchState) -> CapturedStep | None:
        """The graph of a lone row's opening: over its answer, rounded up, or over all of it."""
        canvas, stepper = rows.canvas, self._stepper
        whole = bool((stepper.recipe.cache.stale(canvas, rows.clock) & ~canvas.answer).any())
        if whole and isinstance(stepper.memory, PooledKVStorage):
            return None  # where in the pool the row lies is the device's own affair
        own = _own(canvas) if whole else None
        first, multiple = (own.start, stepper.recipe.block) if own else (canvas.start, WIDTHS)
        opening = slice(first, canvas.start + _multiple(int(canvas.horizon), multiple or 1))
        key = ("opening", opening.start, opening.stop, own and own.stop)
        patience = OPENED if own else 0
        return self._captured(rows, key, lambda s, these: s.within(these, opening, own), patience)

    def _captured(
        self,
        rows: BatchState,
        shape: Hashable,
        advance: Callable[[Stepper, BatchState], tuple[BatchState, StepDetails]],
        patience: int = 0,
    ) -> CapturedStep | None:
        """The graph of a step over such rows; None: it cannot be captured, or was not wanted often yet."""
        recipe, canvas = self._stepper.recipe, rows.canvas
        key = (recipe, *canvas.tokens.shape, canvas.start, rows.max_new_tokens is None, shape)

        def made(pool: Any) -> CapturedStep:
            # What draws is not captured, and draws nothing here.
            forward = Forward(self._model, recipe.sampling, RowGenerators([0] * len(canvas.horizon)))
            stepper = Stepper(recipe, forward, Hooks(), self._stepper.memory)
            return CapturedStep(lambda own: advance(stepper, own)[0], rows, pool)

        return graphs_of(self._model).captured(key, made, patience)


def _own(canvas: Canvas) -> slice:
    """The columns of a lone row."""
    return slice(canvas.start - int(canvas.prompt_length), canvas.start + int(canvas.horizon))


def _multiple(count: int, of: int) -> int:
    """Rounded up."""
    return -(-count // of) * of


def _rounded_to_step(count: int, steps: int) -> int:
    """Rounded up, to one of so many numbers between two powers of two."""
    return _multiple(count, max(MIN_COLUMNS, 1 << (count - 1).bit_length()) // (2 * steps))
