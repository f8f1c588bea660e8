"""An engine that distributes requests over workers, collects their replies, and restarts workers that die."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from time import monotonic
from typing import Any, Generic, Literal, Protocol, runtime_checkable

from lastword.decoding.forward import TokenCost
from lastword.engines.base import (
    GenerationReply,
    GenerationRequest,
    Key,
    Lengths,
    ModelInfo,
    Replies,
    Requests,
    request_pairs,
)
from lastword.engines.local import QUEUE_FACTOR, RUN_ERRORS, error_text
from lastword.errors import EngineError
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import Plan
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS, check_int, check_number
from lastword.version import __version__

MAX_ATTEMPTS = 3  # a request fails after this many workers have died or hung while they decoded it
MAX_LOAD_DEATHS = 3  # a worker is not restarted after this many deaths in a row before it was ready
TASKS_PER_WORKER = 1.25  # at the end a task gets the remaining work divided by this and by the number of workers
PLAN_SIZE = 32  # maximal number of requests in a task that plans
MAX_LONG = 2  # a task of long answers has at most this multiple of the mean work of a task
CHUNK = 8 * PLAN_SIZE  # requests that are read at once
MIN_WINDOW, MAX_WINDOW = 1024, 32_768  # planned requests that wait, about 10 kB each
MAX_WAITING_TOKENS = 2**23  # approximately, in prompts that wait
START_TIMEOUT = 600.0  # seconds until a worker must have loaded its model
FIRST_DEADLINE = 3600.0  # seconds of a task, until a task has finished
MIN_DEADLINE = 60.0  # seconds
TOLERANCE = 10.0  # a deadline is this multiple of the predicted seconds
DECAY = 0.98  # of the slowest measured rate, per finished task
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """Requests that one worker plans or answers in one call. The task can be repeated if the worker dies."""

    kind: Literal["plan", "answer"]
    requests: Sequence[GenerationRequest]
    recipe: Recipe
    max_batch_size: int
    numbers: Sequence[int] = ()  # of the requests in a queue

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: the pool adds cached properties while a thread pickles the task for its worker."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def work(self) -> tuple[float, float]:
        """The predicted forward passes, one per slot, and the tokens that they compute without a cache."""
        prompts = [len(request.prompt_ids) for request in self.requests]
        if self.kind == "plan":
            return 1.0, float(sum(prompts) + self._most_slots * len(prompts))
        sizes = [
            request.plan[0].max_horizon if request.plan else min(request.max_new_tokens or MAX_SLOTS, self._most_slots)
            for request in self.requests
        ]
        tokens = sum(slots * (prompt + slots) for slots, prompt in zip(sizes, prompts))
        return sum(sizes) / min(self.max_batch_size, len(sizes)), float(tokens)

    @cached_property
    def max_work(self) -> tuple[float, float]:
        """The predicted work and that of one answer more, on the largest canvas: canvases may grow."""
        (passes, tokens), slots = self.work, self._most_slots
        longest = max(len(request.prompt_ids) for request in self.requests)
        return passes + slots, tokens + slots * (longest + slots)

    @cached_property
    def _most_slots(self) -> int:
        recipes = {self.recipe, *(request.recipe for request in self.requests if request.recipe)}
        return max(combined_traits(recipe.length).upper_bound for recipe in recipes)


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
    """A call to a worker, which loads its model or runs a task."""

    worker: int
    started: float  # in seconds of `monotonic`
    task: WorkerTask | None = None


class WorkQueue(Generic[Key]):
    """The requests of a run without a reply: those that wait in a window of the input, and those that workers have.

    Requests are read in chunks and numbered. Planned requests are sorted by length. Tasks sweep them from the longest
    to the shortest, again and again while the input is read, and take the longest when it has ended: rows of a task are
    alike, and the last tasks are short. Requests of failed tasks are repeated one per task, after all others.
    """

    def __init__(
        self,
        requests: Requests[Key],
        recipe: Recipe,
        max_batch_size: int,
        num_workers: int,
        *,
        plans_only: bool = False,
    ) -> None:
        self._pairs, self._recipe, self._batch_size = request_pairs(requests), recipe, max_batch_size
        self._task_size = max_batch_size * QUEUE_FACTOR
        self._window = max(MIN_WINDOW, min(self._task_size * num_workers, MAX_WINDOW))  # planned requests
        self.plans_only = plans_only
        self._requests: dict[int, tuple[Key, GenerationRequest]] = {}  # without a reply, by number
        self._count = 0
        self._waiting_tokens = 0  # of unplanned and planned prompts
        self._unplanned = deque[int]()
        self._planned = list[tuple[float, int, int]]()  # slots, prompt tokens, number; sorted
        self._work, self._mean_work = 0.0, 0.0  # of all planned requests, and of one
        self._num_inserted = 0  # requests that were planned
        self._last: tuple[float, ...] = (math.inf, math.inf)  # the shortest request of the last task
        self._alone = deque[int]()
        self._failures = Counter[int]()  # of tasks, by number
        self._is_read = False  # whether all requests were read

    def fill(self) -> bool:
        """Read a chunk of requests; return False if there is no room, or no request left."""
        waiting = len(self._unplanned) + len(self._planned)
        if self._is_read or waiting >= 2 * self._window or self._waiting_tokens >= MAX_WAITING_TOKENS:
            return False
        chunk = list(islice(self._pairs, CHUNK))
        self._is_read = len(chunk) < CHUNK
        # The composition of tasks that plan does not depend on time, so equal runs have equal plans to the last digit.
        for pair in sorted(chunk, key=lambda pair: len(pair[1].prompt_ids)):
            self._requests[self._count] = pair
            self._waiting_tokens += len(pair[1].prompt_ids)
            if self.plans_only or not isinstance((pair[1].recipe or self._recipe).length, Fixed):
                self._unplanned.append(self._count)
            else:
                self._insert(self._count, math.inf)
            self._count += 1
        return bool(chunk)

    def take(self, num_workers: int) -> WorkerTask | None:
        """Remove and return the next task, or None without waiting requests; at the end tasks become smaller."""
        while len(self._unplanned) + len(self._planned) < self._task_size and self.fill():
            pass
        if self._unplanned and len(self._planned) < self._window:
            numbers = [self._unplanned.popleft() for _ in range(min(PLAN_SIZE, len(self._unplanned)))]
            if self.plans_only:
                self._waiting_tokens -= sum(len(self._requests[number][1].prompt_ids) for number in numbers)
            return self._task("plan", numbers)
        if self._alone and (not self._planned or len(self._alone) > self._window):
            return self._task("answer", [self._alone.popleft()])
        return self._task("answer", self._take_planned(num_workers)) if self._planned else None

    def add_plans(self, numbers: Sequence[int], plans: Sequence[tuple[Plan, TokenCost] | None]) -> None:
        """Make requests ready to be answered; those without a plan are probed where they are answered."""
        for number, plan in zip(numbers, plans):
            key, request = self._requests[number]
            recipe = request.recipe or self._recipe
            if plan is not None and prediction_recipe(recipe) == recipe:
                self._requests[number] = key, replace(request, plan=plan)
            self._insert(number, plan[0].max_horizon if plan else math.inf)

    def finish(self, number: int) -> Key:
        """Remove a request that has a reply, and return its key."""
        return self._requests.pop(number)[0]

    def put_back(self, numbers: Sequence[int]) -> list[int]:
        """Put back the requests of a failed task, one per task; return those that have failed `MAX_ATTEMPTS` times."""
        self._failures.update(numbers)
        self._alone.extend(number for number in numbers if self._failures[number] < MAX_ATTEMPTS)
        return [number for number in numbers if self._failures[number] >= MAX_ATTEMPTS]

    def _insert(self, number: int, slots: float) -> None:
        insort(self._planned, (slots, len(self._requests[number][1].prompt_ids), number))
        self._work += _work(slots)
        self._num_inserted += 1
        self._mean_work += (_work(slots) - self._mean_work) / self._num_inserted

    def _take_planned(self, num_workers: int) -> list[int]:
        """Remove and return the requests of a task: fewer if they are very long, or at the end."""
        count, limit = len(self._planned), MAX_LONG * self._task_size * self._mean_work
        fewest = min(self._batch_size, -(-count // num_workers))  # a full batch, if there are enough requests
        end = bisect_left(self._planned, self._last)
        if self._is_read:  # the work that is left is divided
            end, limit = count, min(limit, self._work / (TASKS_PER_WORKER * num_workers))
        elif end < fewest:  # the end of a sweep
            end = fewest if end else count
        work, first = 0.0, end
        while first and (end - first < fewest or work < limit) and end - first < self._task_size:
            first -= 1
            work += _work(self._planned[first][0])
        task = self._planned[first:end]
        del self._planned[first:end]
        self._work -= work
        self._last = task[0]
        self._waiting_tokens -= sum(tokens for _, tokens, _ in task)
        return [number for _, _, number in reversed(task)]

    def _task(self, kind: Literal["plan", "answer"], numbers: Sequence[int]) -> WorkerTask:
        requests = tuple(self._requests[number][1] for number in numbers)
        if kind == "answer":
            return WorkerTask(kind, requests, self._recipe, self._batch_size, numbers)
        requests = tuple(
            replace(request, recipe=prediction_recipe(request.recipe)) if request.recipe else request
            for request in requests
        )
        return WorkerTask(kind, requests, prediction_recipe(self._recipe), 1, numbers)


class TaskDeadlines:
    """The seconds that tasks may take, from the slowest rates of finished tasks; `timeout` replaces them if it is set.

    The predicted seconds are those of the forward passes or of the computed tokens, whichever are more. Until an answer
    is finished, the rates of plans serve as upper bounds: a probe computes more tokens than any later forward pass.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._rates: dict[str, list[float]] = {}  # seconds per unit of `WorkerTask.work`, by kind of task

    def finish(self, task: WorkerTask, seconds: float) -> None:
        """Count a finished task."""
        known = self._rates.get(task.kind, [0.0, 0.0])
        self._rates[task.kind] = [max(seconds / max(work, 1.0), DECAY * rate) for work, rate in zip(task.work, known)]

    def seconds(self, task: WorkerTask) -> float:
        """Return the seconds that a task may take."""
        rates = self._rates.get(task.kind) or self._rates.get("plan")
        if self._timeout is not None or rates is None:
            return self._timeout or FIRST_DEADLINE
        predicted = max(rate * work for rate, work in zip(rates, task.max_work))
        return max(MIN_DEADLINE, TOLERANCE * predicted)


class WorkerPool:
    """An engine with workers: `WorkerPool(ProcessWorkers(ModelSource("tiny-llada-base"), workers=2))`.

    Lengths of waiting requests are predicted while others are answered. Requests are sent with their plans, sorted by
    length (see `WorkQueue`). With a fixed canvas there are no probes, and prompts are sorted by their length. Close the
    pool, or use it in a `with` statement.

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
        queue = WorkQueue(requests, recipe, max_batch_size, self.backend.num_workers)
        for numbers, replies in self._run(queue):
            yield [replace(reply, key=queue.finish(number)) for number, reply in zip(numbers, replies)]

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield planned numbers of slots by key, one task at a time, as tasks finish."""
        queue = WorkQueue(requests, recipe, max_batch_size, self.backend.num_workers, plans_only=True)
        for numbers, plans in self._run(queue):
            keys = [queue.finish(number) for number in numbers]
            yield {key: plan[0].max_horizon for key, plan in zip(keys, plans) if plan is not None}

    def _run(self, queue: WorkQueue[Key]) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Run the tasks of a queue; yield the numbers and results of each, plans only if nothing else is computed."""
        if not queue.fill():
            return
        self._start()
        assigned: set[WorkerTask] = set()
        finished: list[tuple[Sequence[int], list[Any]]] = []
        while True:
            for worker in sorted(self._idle):
                if (task := queue.take(len(self._idle) + len(self._calls))) is None:
                    break
                assigned.add(task)
                self._submit(worker, task)
            yield from finished  # while the workers compute
            finished.clear()
            if not assigned and self._idle:
                return
            for task, result in self._wait(blocking=not queue.fill()):  # while the workers compute, requests are read
                if task not in assigned:
                    continue  # a task of an earlier call, whose caller stopped early
                assigned.remove(task)
                if task.kind == "plan" and isinstance(result, Exception):
                    result = [None] * len(task.numbers)
                if task.kind == "plan" and not queue.plans_only:
                    queue.add_plans(task.numbers, result)
                elif not isinstance(result, Exception):
                    finished.append((task.numbers, result))
                else:
                    failed = queue.put_back(task.numbers)
                    reason = f"{MAX_ATTEMPTS} workers failed while they decoded it, the last with: {error_text(result)}"
                    finished.append((failed, [GenerationReply(0, "", {}, reason)] * len(failed)))

    def _start(self) -> None:
        if not (self._calls or self._idle):
            self._load_deaths.clear()
            for worker in range(self.backend.num_workers):
                self._load(worker)

    def _load(self, worker: int) -> None:
        self._calls[self.backend.start(worker)] = WorkerCall(worker, monotonic())

    def _submit(self, worker: int, task: WorkerTask) -> None:
        self._calls[self.backend.submit(worker, task)] = WorkerCall(worker, monotonic(), task)
        self._idle.discard(worker)

    def _wait(self, *, blocking: bool = True) -> list[tuple[WorkerTask, Any]]:
        """Wait until a call ends or a worker hangs; return the tasks that ended, with their results or errors."""
        ends = {future: call.started + self._time_limit(call) for future, call in self._calls.items()}
        done, _ = wait(ends, max(0.0, min(ends.values(), default=0.0) - monotonic()) * blocking, FIRST_COMPLETED)
        tasks: list[tuple[WorkerTask, Any]] = []
        for future in [*done, *(ends.keys() - done)]:
            call = self._calls[future]
            if future in done:
                error = future.exception()
            elif ends[future] > monotonic() or (call.task is None and not self._is_stuck(call)):
                continue
            else:
                self.backend.kill(call.worker)
                error = EngineError(f"it gave no result within {self._time_limit(call):.0f} s and was ended")
            del self._calls[future]
            if call.task is None:
                self._finish_loading(call, future, error)
            else:
                tasks.append((call.task, self._finish_task(call, future, error)))
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


def _work(slots: float) -> float:
    """Return a number proportional to the work of a request, by its planned slots; 1 if they are not known."""
    return slots if slots < math.inf else 1.0


def prediction_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe, with `Survival` as length policy if it wraps a fixed canvas, as in `StopAtEnd(Fixed())`."""
    if isinstance(recipe.length, Fixed) or not any(isinstance(layer, Fixed) for layer in policy_layers(recipe.length)):
        return recipe
    return replace(recipe, length=Survival(limit=combined_traits(recipe.length).upper_bound))
