"""The choice of a static shape for each pass, so that passes can be captured as CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from lastword.canvas.canvas import Canvas
from lastword.decoding.cuda_graph import CapturedStep, graphs_of
from lastword.decoding.forward import Forward, Hooks, PackedCapacity
from lastword.decoding.running_batch import PlannedRequest
from lastword.decoding.sampling import RowGenerators
from lastword.decoding.step import MIN_COLUMNS, BatchState, PassShape, Phase, StepDetails, Stepper, is_capturable
from lastword.models.base import MaskPredictor
from lastword.models.storage import CacheStorage, PooledKVStorage
from lastword.policies.cache import NoCache

COLUMN_MULTIPLE = 64  # answer lengths are rounded up to its multiples, so that more passes share a graph
EVICT_SHARE = 32  # packed rows: one row in 32 has finished or changed length before a replay ends
BLOCK_START_SHARE = 4  # rows at a block start wait until there are a quarter as many as inside blocks

# A shape is captured after this many requests, because a capture takes longer than several passes.
MIN_REQUESTS = 4
MIN_REQUESTS_BLOCK_START = 16  # larger, because an answer has few block starts


class PhaseScheduler:
    """A scheduler of steps, which chooses the shape of each pass and replays captured steps.

    With a cache, a pass is either for the rows at a block start or for those inside a block. At a block start it
    computes whole rows of different lengths, enough work for a GPU. Inside blocks, rows compute equally many columns.
    """

    def __init__(
        self, stepper: Stepper, model: MaskPredictor, *, use_cuda_graphs: bool, pool_tokens: int | None = None
    ) -> None:
        self.graph_fallbacks = 0  # steps that ran uncaptured because their capture failed
        self._stepper, self._model = stepper, model
        self._use_cuda_graphs = use_cuda_graphs
        self._pool_tokens = pool_tokens  # size of the cache's pool (`decode_steps`); None: no pool
        self._holds_graphs: bool | None = None  # None: not decided yet

    def __call__(
        self, state: BatchState, phases: Sequence[Phase], requests: Sequence[PlannedRequest] = ()
    ) -> tuple[BatchState, StepDetails | None]:
        """Run one step, or replay several; return the state after them, and details (None after a replay)."""
        stepper = self._stepper
        if not isinstance(stepper.recipe.cache, NoCache):
            if stepper.storage is None:
                stepper.storage = self._open_storage(state)
            if BLOCK_START_SHARE * phases.count(Phase.BLOCK_START) >= phases.count(Phase.IN_BLOCK):
                self._reserve(state, phases, requests)
                shape = self._block_start_shape(state)
            else:
                shape = PassShape(Phase.IN_BLOCK, static=True)
        elif len(phases) == 1:
            shape = PassShape(static=True, row=_row_span(state.canvas))
        else:
            shape = PassShape(static=True, packed=self._packed_capacity(state))
        if shape.static and self._replays:
            captured = self._captured(state, shape)
            if captured is not None and captured.failure is None:
                evictions = len(phases) // EVICT_SHARE if shape.packed else 0
                return captured(state, once=shape.phase is Phase.BLOCK_START, min_changed=max(1, evictions)), None
            self.graph_fallbacks += captured is not None
        return stepper(state, shape)

    def close(self) -> None:
        """Release the lock on the model's graphs, so that another decoding run can replay them."""
        if self._holds_graphs:
            graphs_of(self._model).in_use.release()
        self._holds_graphs = False

    @property
    def _replays(self) -> bool:
        """True if this run replays graphs: on a GPU, if parts are capturable and no other run of the model does."""
        if self._holds_graphs is None:
            on_gpu = self._use_cuda_graphs and self._model.device.type == "cuda"
            wanted = on_gpu and is_capturable(self._stepper.recipe)
            self._holds_graphs = wanted and graphs_of(self._model).in_use.acquire(blocking=False)
        return self._holds_graphs

    def _packed_capacity(self, state: BatchState) -> PackedCapacity:
        """Return sizes that fit all rows with masks, rounded up so that batches of similar size share a graph."""
        canvas, running = state.canvas, state.phase > 0
        lengths = torch.stack((canvas.prompt_length, canvas.horizon)) * running
        prompts, answers, longest = torch.cat((lengths.sum(-1), lengths[1:].amax(-1))).tolist()
        slots = min(_round_up(longest, COLUMN_MULTIPLE), canvas.width - canvas.start)
        read = min(answers, len(running) * (self._stepper.recipe.block or slots))
        return PackedCapacity(_round_up_by_steps(prompts + answers, 4), _round_up_by_steps(read, 2), slots)

    def _block_start_shape(self, state: BatchState) -> PassShape:
        """Return the shape of a pass at a block start: static for a single row with graphs, else dynamic."""
        dynamic = PassShape(Phase.BLOCK_START)
        if not self._replays or len(state.phase) != 1:
            return dynamic
        canvas, stepper = state.canvas, self._stepper
        row = None
        if bool((stepper.recipe.cache.stale(canvas, state.clock) & ~canvas.answer).any()):
            if isinstance(stepper.storage, PooledKVStorage):
                return dynamic  # a row's address in the pool is not fixed
            row = _row_span(canvas)
        first, multiple = (canvas.start, COLUMN_MULTIPLE) if row is None else (row.start, stepper.recipe.block)
        end = canvas.start + _round_up(int(canvas.horizon), multiple or 1)
        return PassShape(Phase.BLOCK_START, static=True, recompute=range(first, end), row=row)

    def _open_storage(self, state: BatchState) -> CacheStorage | None:
        """Return new cache storage, or with graphs the storage that the model's graphs read and write."""
        cache, shape = self._stepper.recipe.cache, tuple(state.canvas.tokens.shape)

        def create() -> CacheStorage | None:
            if self._pool_tokens is not None:
                return PooledKVStorage(len(state.phase), state.canvas.width, self._pool_tokens)
            return cache.create_storage(state.canvas)

        if not self._replays:
            return create()
        return graphs_of(self._model).storage((cache, shape, self._pool_tokens), create)

    def _reserve(self, state: BatchState, phases: Sequence[Phase], requests: Sequence[PlannedRequest]) -> None:
        """Reserve pool columns for every unfinished row: prompt, reserved slots (or the horizon if larger), spare ones.

        The spare columns are needed because a pass may write past the end of an answer, by a block or by rounding.
        """
        storage, canvas = self._stepper.storage, state.canvas
        if not isinstance(storage, PooledKVStorage):
            return
        growths, spare = storage.times_grown, max(COLUMN_MULTIPLE, self._stepper.recipe.block or 0)
        lengths = [*zip(canvas.prompt_length.tolist(), canvas.horizon.tolist())]
        for row, phase in enumerate(phases):
            if phase is Phase.DONE:
                storage.release(row)
        for row, phase in enumerate(phases):
            if phase is not Phase.DONE:
                prompt, horizon = lengths[row]
                slots = max(horizon, requests[row].plan.reserved_slots) + spare
                count = prompt + min(slots, canvas.width - canvas.start)
                storage.reserve(row, canvas.start - prompt, count, owner=requests[row])
        if storage.times_grown > growths and self._holds_graphs:
            graphs_of(self._model).clear()

    def _captured(self, state: BatchState, shape: PassShape) -> CapturedStep | None:
        """Return the captured step of this shape, or None until it was needed often enough."""
        recipe, canvas = self._stepper.recipe, state.canvas
        key = (recipe, *canvas.tokens.shape, canvas.start, state.max_new_tokens is None, shape)
        if shape.phase is Phase.BLOCK_START:
            min_requests = MIN_REQUESTS_BLOCK_START if shape.row else 0
        else:
            min_requests = 0 if shape.phase is Phase.IN_BLOCK else MIN_REQUESTS

        def capture(pool: Any) -> CapturedStep:
            # Captured steps do not sample, so the generators are never used. The model owns its graphs: a reference
            # from them would keep it alive.
            model: Any = weakref.proxy(self._model)
            forward = Forward(model, recipe.sampling, RowGenerators([0] * len(canvas.horizon)))
            stepper = Stepper(recipe, forward, Hooks(), self._stepper.storage)
            return CapturedStep(lambda rows: stepper(rows, shape)[0], state, pool)

        return graphs_of(self._model).captured(key, capture, min_requests)


def _row_span(canvas: Canvas) -> range:
    """Return the columns of prompt and answer, on a canvas of one row."""
    return range(canvas.start - int(canvas.prompt_length), canvas.start + int(canvas.horizon))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _round_up_by_steps(count: int, steps: int) -> int:
    """Return `count` rounded up to one of `steps` evenly spaced sizes per power of two."""
    return _round_up(count, max(MIN_COLUMNS, 1 << (count - 1).bit_length()) // (2 * steps))
