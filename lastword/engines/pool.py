"""An engine that distributes requests over workers, collects their replies, and restarts workers that die."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from lastword.decoding.forward import TokenCost
from lastword.engines.base import GenerationReply, GenerationRequest, Key, Lengths, ModelInfo, Replies, Requests
from lastword.engines.deadlines import MIN_DEADLINE, TOLERANCE, TaskDeadlines, WorkerTask
from lastword.engines.local import QUEUE_FACTOR, RUN_ERRORS, error_text
from lastword.errors import EngineError
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import Plan
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe
from lastword.validation import check_int, check_number
from lastword.version import __version__

MAX_ATTEMPTS = 3  # a request fails after this many workers have died or hung while they decoded it
MAX_LOAD_DEATHS = 3  # a worker is not restarted after this many deaths in a row before it was ready
TASKS_PER_WORKER = 2  # a task gets the waiting requests divided by this and by the number of workers
PLAN_SIZE = 32  # maximal number of requests in a task that plans
MAX_PLANS = 10_000  # maximal number of plans sent to workers, which probe again for requests without a plan
START_TIMEOUT = 600.0  # seconds until a worker must have loaded its model
_LOG = logging.getLogger(__name__)


@runtime_checkable
class WorkerBackend(Protocol):
    """The workers of a pool, numbered from 0, each with at most one task at a time.

    A future raises only if its worker died. Any other error is the result of the future.
    """

    num_workers: int

    def start(self, worker: int) -> Future[ModelInfo | Exception]:
        """Start or restart a worker; return a future of its model's properties, or of the error of loading."""

    def submit(self, worker: int, task: WorkerTask) -> Future[list[Any] | Exception]:
        """Send a task; return a future of one result per request: a reply, or a plan with its cost or None."""

    def kill(self, worker: int) -> None:
        """End a worker at once, also if it does not respond; `start` starts it again."""

    def is_placed(self, worker: int) -> bool:
        """Return whether a worker runs, and not merely waits for resources."""

    def requirements(self) -> str:
        """Return a phrase for error messages: what the workers need to start."""

    def close(self) -> None:
        """End the workers that this backend started."""


@dataclass
class WorkerCall:
    """What a worker does: it loads its model, or runs a task."""

    worker: int
    started: float  # in seconds of `monotonic`
    task: WorkerTask | None = None


class WorkQueue:
    """A queue of request indices, in the order in which workers receive them."""

    def __init__(self, order: Sequence[int], *, max_size: int) -> None:
        self._pending, self._max_size = deque(order), max_size
        self._alone: deque[int] = deque()  # requests of failed tasks: one per task, before all others
        self._failures: Counter[int] = Counter()  # of tasks, by request index

    def __bool__(self) -> bool:
        return bool(self._alone or self._pending)

    def take(self, num_workers: int) -> list[int]:
        """Remove and return the indices of the next task; tasks become smaller as the queue empties."""
        if self._alone:
            return [self._alone.popleft()]
        share = len(self._pending) // (TASKS_PER_WORKER * num_workers)
        size = min(max(1, min(self._max_size, share)), len(self._pending))
        return [self._pending.popleft() for _ in range(size)]

    def put_back(self, indices: Sequence[int]) -> list[int]:
        """Put back the requests of a failed task, one per task; return those that have failed `MAX_ATTEMPTS` times."""
        self._failures.update(indices)
        self._alone.extend(index for index in indices if self._failures[index] < MAX_ATTEMPTS)
        return [index for index in indices if self._failures[index] >= MAX_ATTEMPTS]


class WorkerPool:
    """An engine with workers: `WorkerPool(ProcessWorkers(ModelSource("tiny-llada-base"), workers=2))`.

    Lengths are predicted first. Then requests are sent with their plans, longest first: no worker is left with a
    long answer when the others are idle, and rows of one batch have similar lengths. With a fixed canvas there
    are no probes, and the longest prompts are sent first. Close the pool, or use it in a `with` statement.

    A worker that dies or hangs is restarted, and its requests are repeated one per task. It hangs if a task takes ten
    times as long as predicted, but at least a minute; `task_timeout` sets other seconds. Models must be loaded within
    `timeout` seconds.
    """

    def __init__(
        self, backend: WorkerBackend, *, timeout: float = START_TIMEOUT, task_timeout: float | None = None
    ) -> None:
        check_number("WorkerPool", "timeout", timeout, above=0)
        if task_timeout is not None:
            check_number("WorkerPool", "task_timeout", task_timeout, above=0)
        check_int("WorkerPool", "workers", backend.num_workers, minimum=1)
        self.backend, self.timeout = backend, timeout
        self._deadlines = TaskDeadlines(task_timeout)
        self._slowest_load: float | None = None  # seconds
        self._model_info: ModelInfo | None = None
        self._calls: dict[Future[Any], WorkerCall] = {}  # of busy workers
        self._idle: set[int] = set()
        self._load_deaths: Counter[int] = Counter()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.backend.close()
        self._calls, self._idle = {}, set()

    @property
    def model_info(self) -> ModelInfo:
        """The properties of the model. The first access starts the workers and waits until one has loaded it."""
        self._start()
        while self._model_info is None:
            self._wait()
        return self._model_info

    def generate(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Replies[Key]:
        """Yield the replies of one task at a time, as tasks finish."""
        check_int("WorkerPool.generate", "max_batch_size", max_batch_size, minimum=1)
        if not requests:
            return
        keys = list(requests)
        queue, planned = self._plan_order([*requests.values()], recipe, max_batch_size)
        for indices, replies in self._run(WorkerTask("answer", planned, recipe, max_batch_size), queue):
            yield [replace(reply, key=keys[index]) for index, reply in zip(indices, replies)]

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield planned numbers of slots by key, one task at a time, as tasks finish."""
        keys = list(requests)
        for plans in self._plan([*requests.values()], prediction_recipe(recipe)):
            yield {keys[index]: plan.max_horizon for index, (plan, _) in plans.items()}

    def _plan_order(
        self, requests: Sequence[GenerationRequest], recipe: Recipe, max_batch_size: int
    ) -> tuple[WorkQueue, Sequence[GenerationRequest]]:
        """Return the queue, longest planned answers first, and the requests, with at most MAX_PLANS plans attached."""
        planned, slots = list(requests), [math.inf] * len(requests)  # requests without a plan go first
        if not isinstance(recipe.length, Fixed):
            planning = prediction_recipe(recipe)
            for plans in self._plan(requests, planning):
                for index, (plan, cost) in plans.items():
                    slots[index] = plan.max_horizon
                    if planning == recipe and index < MAX_PLANS:
                        planned[index] = replace(requests[index], plan=(plan, cost))
        size = [(slots[index], len(request.prompt_ids)) for index, request in enumerate(requests)]
        order = sorted(range(len(requests)), key=size.__getitem__, reverse=True)
        return WorkQueue(order, max_size=max_batch_size * QUEUE_FACTOR), planned

    def _plan(
        self, requests: Sequence[GenerationRequest], recipe: Recipe
    ) -> Iterator[dict[int, tuple[Plan, TokenCost]]]:
        """Yield plans and probe costs by request index, one task at a time; requests without a plan are left out."""
        order = sorted(range(len(requests)), key=lambda index: len(requests[index].prompt_ids), reverse=True)
        for indices, plans in self._run(WorkerTask("plan", requests, recipe, 1), WorkQueue(order, max_size=PLAN_SIZE)):
            yield {index: plan for index, plan in zip(indices, plans) if plan is not None}

    def _run(self, work: WorkerTask, queue: WorkQueue) -> Iterator[tuple[list[int], list[Any]]]:
        """Divide work into tasks; yield the request indices and results of each, except for failed plan tasks."""
        self._start()
        assigned: dict[Future[Any], list[int]] = {}
        finished: list[tuple[list[int], list[Any]]] = []
        while True:
            for worker in sorted(self._idle):
                if indices := queue.take(len(self._idle) + len(self._calls)):
                    batch = tuple(work.requests[index] for index in indices)
                    assigned[self._submit(worker, replace(work, requests=batch))] = indices
            yield from finished  # while the workers decode their next tasks
            finished.clear()
            if not assigned and not queue:
                return
            for task, result in self._wait():
                if task not in assigned:
                    continue  # a task of an earlier call, whose caller stopped early
                indices = assigned.pop(task)
                if not isinstance(result, Exception):
                    finished.append((indices, result))
                elif work.kind == "answer":
                    failed = queue.put_back(indices)
                    reason = f"{MAX_ATTEMPTS} workers failed while they decoded it, the last with: {error_text(result)}"
                    finished.append((failed, [GenerationReply(0, "", {}, reason)] * len(failed)))

    def _start(self) -> None:
        if not (self._calls or self._idle):
            self._load_deaths.clear()
            for worker in range(self.backend.num_workers):
                self._load(worker)

    def _load(self, worker: int) -> None:
        self._calls[self.backend.start(worker)] = WorkerCall(worker, monotonic())

    def _submit(self, worker: int, task: WorkerTask) -> Future[Any]:
        future = self.backend.submit(worker, task)
        self._idle.discard(worker)
        self._calls[future] = WorkerCall(worker, monotonic(), task)
        return future

    def _wait(self) -> list[tuple[Future[Any], Any]]:
        """Wait until a call ends or a worker hangs; return the tasks that ended, with their results or errors."""
        ends = {future: call.started + self._time_limit(call) for future, call in self._calls.items()}
        done, _ = wait(ends, max(0.0, min(ends.values()) - monotonic()), FIRST_COMPLETED)
        tasks: list[tuple[Future[Any], Any]] = []
        for future in done:
            call = self._calls.pop(future)
            if call.task is None:
                self._finish_loading(call, future, future.exception())
            else:
                tasks.append((future, self._finish_task(call, future, future.exception())))
        for future in ends.keys() - done:
            call = self._calls[future]
            if ends[future] > monotonic() or (call.task is None and not self._is_stuck(call)):
                continue
            del self._calls[future]
            self.backend.kill(call.worker)
            error = EngineError(f"it gave no result within {self._time_limit(call):.0f} s and was ended")
            if call.task is None:
                self._finish_loading(call, future, error)
            else:
                tasks.append((future, self._finish_task(call, future, error)))
        return tasks

    def _time_limit(self, call: WorkerCall) -> float:
        """Return the seconds until a call counts as stuck."""
        if call.task is not None:
            return self._deadlines.seconds(call.task)
        slowest = self._slowest_load
        return self.timeout if slowest is None else min(self.timeout, max(MIN_DEADLINE, TOLERANCE * slowest))

    def _is_stuck(self, loading: WorkerCall) -> bool:
        """Return whether an overdue worker must be ended; wait again for one without resources."""
        if self._model_info is None:
            raise EngineError(
                f"no worker was ready after {self.timeout:g} s; waited for {self.backend.requirements()}. "
                "Check that the resources are free, or use fewer workers"
            )
        if self.backend.is_placed(loading.worker):
            return True
        loading.started = monotonic()
        return False

    def _finish_loading(self, call: WorkerCall, future: Future[Any], error: BaseException | None) -> None:
        """Mark a worker as idle if it has loaded its model; else restart it, unless it died `MAX_LOAD_DEATHS` times."""
        worker = call.worker
        if error is None:
            self._check_model(worker, future.result())
            self._slowest_load = max(monotonic() - call.started, self._slowest_load or 0.0)
            self._idle.add(worker)
            return
        self._load_deaths[worker] += 1
        if self._load_deaths[worker] < MAX_LOAD_DEATHS:
            self._restart(worker, error)
            return
        _LOG.warning("worker %d died %d times (%s); it is not restarted", worker, MAX_LOAD_DEATHS, error)
        if not (self._calls or self._idle):
            raise EngineError(
                f"every worker died {MAX_LOAD_DEATHS} times before it was ready, the last with: "
                f"{error_text(error)}. Check the memory, the files of the model, and the device"
            )

    def _finish_task(self, call: WorkerCall, future: Future[Any], error: BaseException | None) -> Any:
        if error is not None:
            self._restart(call.worker, error)
            return error
        self._idle.add(call.worker)
        self._load_deaths[call.worker] = 0
        result: list[Any] | Exception = future.result()
        if isinstance(result, RUN_ERRORS):
            raise result
        if call.task is not None and not isinstance(result, Exception):
            self._deadlines.finish(call.task, monotonic() - call.started)
        return result

    def _restart(self, worker: int, error: BaseException) -> None:
        _LOG.warning("worker %d died (%s) and is restarted", worker, error)
        self._load(worker)

    def _check_model(self, worker: int, model_info: ModelInfo | Exception) -> None:
        """Raise EngineError unless the worker has the first worker's model and this process's lastword version."""
        if isinstance(model_info, Exception):
            raise EngineError(f"worker {worker} cannot load the model: {error_text(model_info)}")
        version = model_info.versions.get("lastword")
        if version != __version__:
            raise EngineError(
                f"a worker runs lastword {version} and this process {__version__}; install one version everywhere"
            )
        first = self._model_info = self._model_info or model_info
        if model_info.identity != first.identity:
            raise EngineError(
                "two workers loaded different models under one name (other weights, dtype, ids or "
                f"calibration: {first.fingerprint}, {first.dtype} and {model_info.fingerprint}, "
                f"{model_info.dtype}); give every machine the same files, device and dtype"
            )


def prediction_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe, with `Survival` as length policy if it wraps a fixed canvas, as in `StopAtEnd(Fixed())`."""
    if isinstance(recipe.length, Fixed) or not any(isinstance(layer, Fixed) for layer in policy_layers(recipe.length)):
        return recipe
    return replace(recipe, length=Survival(limit=combined_traits(recipe.length).upper_bound))
