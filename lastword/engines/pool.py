"""Pool: an engine of many workers, wherever they are. It hands out questions and collects replies.

Whatever happens to workers, a key comes back exactly once. A worker that dies is started again, and what it
had is given again; a question over which workers keep dying comes back as failed. A result that comes late,
of a job that was given to somebody else since, is dropped.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from lastword.engines.elsewhere import Elsewhere
from lastword.engines.engine import Key, Question, Reply
from lastword.engines.handing import ORDERS, PREDICTED, TRIES, Handing
from lastword.engines.local import QUEUED
from lastword.engines.places import (
    Died,
    Done,
    Event,
    Failed,
    Job,
    Places,
    Predicted,
    Ready,
    Refused,
    Unable,
)
from lastword.errors import EngineError
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from lastword.validation import check_choice, check_int, check_number
from lastword.version import __version__

PROBED = 32  # questions of a job that predicts, at most
PLANS = 10_000  # plans that are kept; whoever has none is probed again where it is answered
STARTS = 3  # times that a worker may die with nothing to do before it is left alone
PATIENCE = 600.0  # seconds to wait for a first worker
_LOG = logging.getLogger(__name__)


class Pool:
    """An engine around workers: `Pool(Processes(Source("tiny-llada-base"), workers=2))`.

    `order="predicted"` plans all questions first and hands out the longest predicted first, with its plan:
    no worker ends alone with the longest answer, and rows that are decoded at once are alike. Where the
    canvas is fixed, nothing is probed and the longest prompts go first. "round robin" deals questions out
    beforehand, to measure against. Close it, or use it in a `with`.
    """

    def __init__(self, places: Places, *, order: str = PREDICTED, patience: float = PATIENCE) -> None:
        check_choice("Pool", "order", order, *ORDERS)
        check_number("Pool", "patience", patience, above=0)
        check_int("Pool", "workers", places.workers, minimum=1)
        self.places, self.order, self.patience = places, order, patience
        self._model: Elsewhere | None = None
        self._idle: set[int] = set()
        self._busy: dict[int, int] = {}  # worker: number of its job
        self._gone: dict[int, str] = {}  # workers that are left alone, and why
        self._idle_deaths: Counter[int] = Counter()
        self._known: dict[int, Predicted] = {}  # for who asks next
        self.last_done: dict[int, float] = {}  # when each worker was last through with a job
        self._numbers = count()
        self._started = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *left_by: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.places.close()
        self._started = False
        self._idle.clear()
        self._busy.clear()

    def wait_for_all(self) -> None:
        """Wait until every worker that can be had is ready; `ask` itself begins with the first."""
        self._start()
        while len(self._idle) + len(self._busy) + len(self._gone) < self.places.workers:
            for event in self._happened():
                self._heard(event)

    @property
    def model(self) -> Elsewhere:
        """What the workers loaded, without its weights. Waits for the first worker that is ready."""
        self._start()
        while self._model is None:
            for event in self._happened():
                self._heard(event)
        return self._model

    def ask(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[list[Reply[Key]]]:
        """Replies as they come, a job's at a time."""
        check_int("Pool.ask", "rows", rows, minimum=1)
        keys = list(questions)
        asked = [questions[key] for key in keys]
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
                    replace(one, planned=None if own is None else own.planned)
                    for one, own in zip(asked, found)
                ]
            order.sort(key=lambda at: (lengths[at], len(asked[at].prompt)), reverse=True)
        handing = self._handing(order, rows * QUEUED, self.order, deaths)
        self._known.clear()
        for places, result in self._through(handing, asked, recipe, rows, "answer"):
            yield [replace(reply, key=keys[at]) for at, reply in zip(places, result)]

    def predict(
        self, questions: Mapping[Key, Question], recipe: Recipe, *, rows: int
    ) -> Iterator[dict[Key, int]]:
        """Slots that answers are planned to take, all at once; who asks then is not probed again."""
        found = self._predicted([*questions.values()], recipe, Counter())
        yield {key: own.slots for key, own in zip(questions, found) if own is not None}

    def _predicted(
        self, asked: Sequence[Question], recipe: Recipe, deaths: Counter[int]
    ) -> list[Predicted | None]:
        """What is known of each, asked of the workers where we do not know; their deaths are counted."""
        names = [_digest(one, recipe) for one in asked]
        lacking = [at for at, name in enumerate(names) if name not in self._known]
        lacking.sort(key=lambda at: len(asked[at].prompt), reverse=True)
        handing = self._handing(lacking, PROBED, PREDICTED, {})
        for places, result in self._through(handing, asked, recipe, 1, "predict"):
            if result is None:
                deaths.update(places)
            for at, own in zip(places, result or ()):
                if own is not None:
                    bare = len(self._known) >= PLANS
                    self._known[names[at]] = replace(own, planned=None) if bare else own
        return [self._known.get(name) for name in names]

    def _handing(self, order: Sequence[int], most: int, how: str, deaths: Mapping[int, int]) -> Handing:
        return Handing(order, workers=self.places.workers, most=most, order=how, deaths=deaths)

    def _through(
        self,
        handing: Handing,
        asked: Sequence[Question],
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
                if places := handing.next(worker, self.places.workers - len(self._gone)):
                    questions = tuple(asked[at] for at in places)
                    job = Job(next(self._numbers), kind, questions, recipe, rows)
                    given[job.number] = places
                    self._idle.discard(worker)
                    self._busy[worker] = job.number
                    self.places.give(worker, job)
            yield from came  # workers have their next jobs, and the books are kept
            came.clear()
            if not given and not handing:
                return
            for event in self._happened():
                number = self._busy.get(event.worker, -1)
                self._heard(event, handing)
                if number in given and _ends(event, number):
                    mine = given.pop(number)
                    if isinstance(event, Done) and len(event.result) == len(mine):
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
            for worker in range(self.places.workers):
                self.places.start(worker)

    def _happened(self) -> Sequence[Event]:
        """What happened, waited for: no longer than we are patient while nobody works."""
        found = self.places.wait(self.patience)
        while not found and self._busy:
            found = self.places.wait(self.patience)
        if not found and not self._idle:
            raise EngineError(
                f"no worker was ready after {self.patience:g} s; waited for {self.places.awaited()}. See "
                "that it can be had, or ask for fewer workers"
            )
        return found

    def _heard(self, event: Event, handing: Handing | None = None) -> None:
        """Keep the books of workers."""
        worker = event.worker
        if isinstance(event, Ready):
            self._check_same(event.model)
            self._busy.pop(worker, None)  # it began anew, and knows nothing of a job
            self._idle.add(worker)
        elif isinstance(event, Unable):
            raise EngineError(f"worker {worker} cannot load the model: {event.reason}")
        elif isinstance(event, Died):
            self._idle.discard(worker)
            if self._busy.pop(worker, None) is None:
                self._idle_deaths[worker] += 1
            if self._idle_deaths[worker] < STARTS:
                _LOG.warning("worker %d died (%s); it is started again", worker, event.reason)
                self.places.start(worker)
                return
            self._gone[worker] = event.reason
            _LOG.warning("worker %d died %d times (%s); we go on without", worker, STARTS, event.reason)
            if handing is not None:
                handing.retire(worker)
            if len(self._gone) == self.places.workers:
                raise EngineError(
                    f"every worker died {STARTS} times before it did anything; the last said: "
                    f"{event.reason}. Look for the reason there: memory, the model's files, the device"
                )
        elif self._busy.get(worker) == event.job:
            del self._busy[worker]
            self._idle.add(worker)
            self._idle_deaths[worker] = 0
            self.last_done[worker] = time.perf_counter()
            if isinstance(event, Refused):
                raise event.error

    def _check_same(self, model: Elsewhere) -> None:
        """All workers have one model, and our version."""
        theirs = model.versions.get("lastword")
        if theirs != __version__:
            raise EngineError(
                f"a worker runs lastword {theirs} and this is {__version__}; install one version everywhere"
            )
        if self._model is None:
            self._model = model
        elif model.answers_as != self._model.answers_as:
            raise EngineError(
                "two workers loaded different models under one name (other weights, dtype, ids or "
                f"calibration: {self._model.fingerprint}, {self._model.dtype} and {model.fingerprint}, "
                f"{model.dtype}); give every machine the same files, device and dtype"
            )


def _ends(event: Event, number: int) -> bool:
    """Is the job of this number through, or lost?"""
    return isinstance(event, (Died, Ready)) or (
        isinstance(event, (Done, Failed, Refused)) and event.job == number
    )


def _digest(question: Question, recipe: Recipe) -> int:
    """Enough to know a question again; a rare mistake costs its place in the order, and nothing else."""
    return hash((tuple(question.prompt), question.most, recipe.label()))


def _lost(event: Event, mine: list[int], handing: Handing) -> tuple[list[int], list[Reply[int]]] | None:
    """What will not be given again, as failed; the rest goes back."""
    reason = getattr(event, "reason", "the worker had forgotten the job")
    if isinstance(event, (Died, Ready)):
        mine = handing.died(mine)
        reason = f"{TRIES} workers died over it; of the last, {reason}"
    elif len(mine) > 1:
        handing.apart(mine)
        return None
    return (mine, [Reply(0, "", {}, failed=reason) for _ in mine]) if mine else None
