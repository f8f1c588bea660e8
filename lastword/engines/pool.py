"""An engine of many workers: distribute requests, collect replies, survive the death of workers."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from lastword.engines.base import (
    GenerationReply,
    GenerationRequest,
    Key,
    ModelInfo,
    PredictedLength,
    TaskDone,
    TaskFailed,
    TaskRejected,
    WorkerBackend,
    WorkerDied,
    WorkerEvent,
    WorkerLoadFailed,
    WorkerReady,
    WorkerTask,
)
from lastword.engines.local import QUEUE_FACTOR
from lastword.errors import EngineError
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from lastword.validation import check_choice, check_int, check_number
from lastword.version import __version__

ORDERS = PREDICTED, ROUND_ROBIN = "predicted", "round robin"
MAX_DEATHS = 3  # workers that may die over a question before it is given up
WAVES = 2  # jobs that every worker should still get, as jobs become smaller


class WorkQueue:
    """Questions by their places, those still to be given.

    `places` come in the order they are to be given, at most `most` at a time; `deaths` counts the workers
    that died over some of them before.
    """

    def __init__(
        self,
        places: Sequence[int],
        *,
        workers: int,
        most: int,
        order: str,
        deaths: Mapping[int, int] | None = None,
    ) -> None:
        self._most, self._workers = most, workers
        self._shared = order == PREDICTED
        self._deaths = Counter(deaths or {})
        self._alone = deque(place for place in places if self._deaths[place])
        rest = [place for place in places if not self._deaths[place]]
        dealt = [rest] if self._shared else [rest[first::workers] for first in range(workers)]
        self._left = [*map(deque, dealt)]

    def __bool__(self) -> bool:
        return bool(self._alone) or any(self._left)

    def next(self, worker: int, sharing: int | None = None) -> list[int]:
        """What to give this worker now; nothing where nothing is left for it.

        Who was with a worker that died goes first and alone, so that it takes no neighbour along. `sharing`
        workers are there to share what is left.
        """
        if self._alone:
            return [self._alone.popleft()]
        left = self._left[0 if self._shared else worker % len(self._left)]
        size = self._most
        if self._shared:
            size = max(1, min(size, len(left) // (WAVES * (sharing or self._workers))))
        return [left.popleft() for _ in range(min(size, len(left)))]

    def died(self, places: Sequence[int]) -> list[int]:
        """Take back what a worker had that died; those that are given up are returned."""
        self._deaths.update(places)
        again = [place for place in places if self._deaths[place] < MAX_DEATHS]
        self._alone.extend(again)
        return [place for place in places if self._deaths[place] >= MAX_DEATHS]

    def apart(self, places: Sequence[int]) -> None:
        """Take back what failed together: each is given alone."""
        self._alone.extend(places)

    def retire(self, worker: int) -> None:
        """This worker will not come again: what only it was to be given goes to whoever asks."""
        if not self._shared:
            left = self._left[worker % len(self._left)]
            self._alone.extend(left)
            left.clear()


PROBED = 32  # questions of a job that predicts, at most
PLANS = 10_000  # plans that are kept; whoever has none is probed again where it is answered
STARTS = 3  # times that a worker may die with nothing to do before it is left alone
PATIENCE = 600.0  # seconds to wait for a first worker
_LOG = logging.getLogger(__name__)


class WorkerPool:
    """An engine around workers: `WorkerPool(ProcessWorkers(ModelSource("tiny-llada-base"), workers=2))`.

    `order="predicted"` plans all questions first and hands out the longest predicted first, with its plan:
    no worker ends alone with the longest answer, and rows that are decoded at once are alike. Where the
    canvas is fixed, nothing is probed and the longest prompts go first. "round robin" deals questions out
    beforehand, to measure against. Close it, or use it in a `with`.
    """

    def __init__(self, backend: WorkerBackend, *, order: str = PREDICTED, timeout: float = PATIENCE) -> None:
        check_choice("Pool", "order", order, *ORDERS)
        check_number("WorkerPool", "timeout", timeout, above=0)
        check_int("Pool", "workers", backend.num_workers, minimum=1)
        self.backend, self.order, self.timeout = backend, order, timeout
        self._model: ModelInfo | None = None
        self._idle: set[int] = set()
        self._busy: dict[int, int] = {}  # worker: number of its job
        self._gone: dict[int, str] = {}  # workers that are left alone, and why
        self._idle_deaths: Counter[int] = Counter()
        self._known: dict[int, PredictedLength] = {}  # for who asks next
        self.last_done: dict[int, float] = {}  # when each worker was last through with a job
        self._numbers = count()
        self._started = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *left_by: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.backend.close()
        self._started = False
        self._idle.clear()
        self._busy.clear()

    def wait_for_all(self) -> None:
        """Wait until every worker that can be had is ready; `ask` itself begins with the first."""
        self._start()
        while len(self._idle) + len(self._busy) + len(self._gone) < self.backend.num_workers:
            for event in self._happened():
                self._heard(event)

    @property
    def model(self) -> ModelInfo:
        """What the workers loaded, without its weights. Waits for the first worker that is ready."""
        self._start()
        while self._model is None:
            for event in self._happened():
                self._heard(event)
        return self._model

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """Replies as they come, a job's at a time."""
        check_int("Pool.ask", "rows", max_batch_size, minimum=1)
        keys = list(requests)
        asked = [requests[key] for key in keys]
        if not keys:
            return
        order = list(range(len(keys)))
        deaths: Counter[int] = Counter()
        if self.order == PREDICTED:
            lengths = [0.0] * len(keys)
            if not isinstance(recipe.length, Fixed):
                found = self._predicted(asked, recipe, deaths)
                lengths = [math.inf if own is None else own.slots for own in found]
                asked = [
                    replace(one, plan=None if own is None else own.plan) for one, own in zip(asked, found)
                ]
            order.sort(key=lambda at: (lengths[at], len(asked[at].prompt_ids)), reverse=True)
        handing = self._handing(order, max_batch_size * QUEUE_FACTOR, self.order, deaths)
        self._known.clear()
        for places, result in self._through(handing, asked, recipe, max_batch_size, "answer"):
            yield [replace(reply, key=keys[at]) for at, reply in zip(places, result)]

    def predict_lengths(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[dict[Key, int]]:
        """Slots that answers are planned to take, all at once; who asks then is not probed again."""
        found = self._predicted([*requests.values()], recipe, Counter())
        yield {key: own.slots for key, own in zip(requests, found) if own is not None}

    def _predicted(
        self, asked: Sequence[GenerationRequest], recipe: Recipe, deaths: Counter[int]
    ) -> list[PredictedLength | None]:
        """What is known of each, asked of the workers where we do not know; their deaths are counted."""
        names = [_digest(one, recipe) for one in asked]
        lacking = [at for at, name in enumerate(names) if name not in self._known]
        lacking.sort(key=lambda at: len(asked[at].prompt_ids), reverse=True)
        handing = self._handing(lacking, PROBED, PREDICTED, {})
        for places, result in self._through(handing, asked, recipe, 1, "predict"):
            if result is None:
                deaths.update(places)
            for at, own in zip(places, result or ()):
                if own is not None:
                    bare = len(self._known) >= PLANS
                    self._known[names[at]] = replace(own, plan=None) if bare else own
        return [self._known.get(name) for name in names]

    def _handing(self, order: Sequence[int], most: int, how: str, deaths: Mapping[int, int]) -> WorkQueue:
        return WorkQueue(order, workers=self.backend.num_workers, most=most, order=how, deaths=deaths)

    def _through(
        self,
        handing: WorkQueue,
        asked: Sequence[GenerationRequest],
        recipe: Recipe,
        rows: int,
        kind: Literal["predict", "answer"],
    ) -> Iterator[tuple[list[int], Any]]:
        """What came of all that is handed out, a job at a time: places among the asked, and results.

        Where a length could not be predicted, None is the result; it is not tried again.
        """
        self._start()
        given: dict[int, list[int]] = {}  # places in each job that is out
        came: list[tuple[list[int], Any]] = []
        while True:
            for worker in sorted(self._idle):
                if places := handing.next(worker, self.backend.num_workers - len(self._gone)):
                    questions = tuple(asked[at] for at in places)
                    job = WorkerTask(next(self._numbers), kind, questions, recipe, rows)
                    given[job.task_id] = places
                    self._idle.discard(worker)
                    self._busy[worker] = job.task_id
                    self.backend.submit(worker, job)
            yield from came  # workers have their next jobs, and the books are kept
            came.clear()
            if not given and not handing:
                return
            for event in self._happened():
                number = self._busy.get(event.worker, -1)
                self._heard(event, handing)
                if number in given and _ends(event, number):
                    mine = given.pop(number)
                    if isinstance(event, TaskDone) and len(event.result) == len(mine):
                        came.append((mine, event.result))
                    elif kind == "predict":
                        came.append((mine, None))
                    elif lost := _lost(event, mine, handing):
                        came.append(lost)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._gone.clear()
            self._idle_deaths.clear()
            for worker in range(self.backend.num_workers):
                self.backend.start(worker)

    def _happened(self) -> Sequence[WorkerEvent]:
        """What happened, waited for: no longer than we are patient while nobody works."""
        found = self.backend.wait(self.timeout)
        while not found and self._busy:
            found = self.backend.wait(self.timeout)
        if not found and not self._idle:
            raise EngineError(
                f"no worker was ready after {self.timeout:g} s; waited for {self.backend.pending()}. See "
                "that it can be had, or ask for fewer workers"
            )
        return found

    def _heard(self, event: WorkerEvent, handing: WorkQueue | None = None) -> None:
        """Keep the books of workers."""
        worker = event.worker
        if isinstance(event, WorkerReady):
            self._check_same(event.model_info)
            self._busy.pop(worker, None)  # it began anew, and knows nothing of a job
            self._idle.add(worker)
        elif isinstance(event, WorkerLoadFailed):
            raise EngineError(f"worker {worker} cannot load the model: {event.reason}")
        elif isinstance(event, WorkerDied):
            self._idle.discard(worker)
            if self._busy.pop(worker, None) is None:
                self._idle_deaths[worker] += 1
            if self._idle_deaths[worker] < STARTS:
                _LOG.warning("worker %d died (%s); it is started again", worker, event.reason)
                self.backend.start(worker)
                return
            self._gone[worker] = event.reason
            _LOG.warning("worker %d died %d times (%s); we go on without", worker, STARTS, event.reason)
            if handing is not None:
                handing.retire(worker)
            if len(self._gone) == self.backend.num_workers:
                raise EngineError(
                    f"every worker died {STARTS} times before it did anything; the last said: "
                    f"{event.reason}. Look for the reason there: memory, the model's files, the device"
                )
        elif self._busy.get(worker) == event.task_id:
            del self._busy[worker]
            self._idle.add(worker)
            self._idle_deaths[worker] = 0
            self.last_done[worker] = time.perf_counter()
            if isinstance(event, TaskRejected):
                raise event.error

    def _check_same(self, model: ModelInfo) -> None:
        """All workers have one model, and our version."""
        theirs = model.versions.get("lastword")
        if theirs != __version__:
            raise EngineError(
                f"a worker runs lastword {theirs} and this is {__version__}; install one version everywhere"
            )
        if self._model is None:
            self._model = model
        elif model.identity != self._model.identity:
            raise EngineError(
                "two workers loaded different models under one name (other weights, dtype, ids or "
                f"calibration: {self._model.fingerprint}, {self._model.dtype} and {model.fingerprint}, "
                f"{model.dtype}); give every machine the same files, device and dtype"
            )


def _ends(event: WorkerEvent, number: int) -> bool:
    """Is the job of this number through, or lost?"""
    return isinstance(event, (WorkerDied, WorkerReady)) or (
        isinstance(event, (TaskDone, TaskFailed, TaskRejected)) and event.task_id == number
    )


def _digest(question: GenerationRequest, recipe: Recipe) -> int:
    """Enough to know a question again; a rare mistake costs its place in the order, and nothing else."""
    return hash((tuple(question.prompt_ids), question.max_new_tokens, recipe.label()))


def _lost(
    event: WorkerEvent, mine: list[int], handing: WorkQueue
) -> tuple[list[int], list[GenerationReply[int]]] | None:
    """What will not be given again, as failed; the rest goes back."""
    reason = getattr(event, "reason", "the worker had forgotten the job")
    if isinstance(event, (WorkerDied, WorkerReady)):
        mine = handing.died(mine)
        reason = f"{MAX_DEATHS} workers died over it; of the last, {reason}"
    elif len(mine) > 1:
        handing.apart(mine)
        return None
    return (mine, [GenerationReply(0, "", {}, error=reason) for _ in mine]) if mine else None
