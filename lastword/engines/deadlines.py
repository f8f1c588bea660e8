"""Deadlines of the tasks of workers. A worker that exceeds its deadline is treated like one that died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lastword.engines.base import GenerationRequest
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS

FIRST_DEADLINE = 3600.0  # seconds of a task, until a task has finished
MIN_DEADLINE = 60.0  # seconds
TOLERANCE = 10.0  # a deadline is this multiple of the predicted seconds
DECAY = 0.98  # of the slowest measured rate, per finished task


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """Requests that one worker plans or answers in one call. The task can be repeated if the worker dies."""

    kind: Literal["plan", "answer"]
    requests: Sequence[GenerationRequest]
    recipe: Recipe
    max_batch_size: int
    numbers: Sequence[int] = ()  # of the requests in a queue

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
