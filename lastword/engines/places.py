"""Places: where the workers of a pool are, and what can happen to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from lastword.canvas.cost import TokenCost
from lastword.engines.elsewhere import Elsewhere
from lastword.engines.engine import Question, Reply
from lastword.engines.local import ABOUT_THE_RUN, failure
from lastword.errors import LastwordError
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe

Result = Sequence["Predicted | None"] | Sequence[Reply[int]]  # of each question, in the order of the job


@dataclass(frozen=True)
class Predicted:
    """Slots that an answer is planned to take, and the plan, so that nobody has to probe again."""

    slots: int
    planned: tuple[Plan, TokenCost] | None


@dataclass(frozen=True)
class Job:
    """Questions that one worker is given at once: to predict how long their answers are, or to answer.

    Its number is its own for as long as the pool lives. A job changes nothing where it runs, so that it
    can be given again.
    """

    number: int
    kind: Literal["predict", "answer"]
    questions: tuple[Question, ...]
    recipe: Recipe
    rows: int  # decoded at once


@dataclass(frozen=True)
class Ready:
    """A worker that was started has loaded its model."""

    worker: int
    model: Elsewhere


@dataclass(frozen=True)
class Unable:
    """A worker that was started runs, and cannot load its model."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Done:
    """A job's result: a prediction, or None, or a reply for each of its questions, in their order."""

    worker: int
    job: int
    result: Result


@dataclass(frozen=True)
class Failed:
    """A job raised something; its worker goes on."""

    worker: int
    job: int
    reason: str


@dataclass(frozen=True)
class Refused:
    """Something is wrong with every question alike, such as the recipe: the caller is told."""

    worker: int
    job: int
    error: LastwordError


@dataclass(frozen=True)
class Died:
    """A worker is gone, and with it the job it had."""

    worker: int
    reason: str


Event = Ready | Unable | Done | Failed | Refused | Died


@runtime_checkable
class Places(Protocol):
    """Workers, numbered from 0. A worker has one job at a time, and says so when it is through with it."""

    workers: int

    def start(self, worker: int) -> None:
        """Start a worker, or start it again. `Ready`, `Unable` or `Died` comes of it."""

    def give(self, worker: int, job: Job) -> None:
        """Give a worker that is ready a job. `Done`, `Failed`, `Refused` or `Died` comes of it."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """What happened since, as soon as something did; nothing after so many seconds."""

    def awaited(self) -> str:
        """In words, what workers that are not ready wait for."""

    def close(self) -> None:
        """End the workers that were started here, and nothing else."""


def performed(worker: int, job: Job, run: Callable[[Job], Result]) -> Event:
    """What comes of a job that is run here, without a worker's death."""
    try:
        return Done(worker, job.number, run(job))
    except ABOUT_THE_RUN as refused:
        return Refused(worker, job.number, refused)
    except Exception as raised:
        return Failed(worker, job.number, failure(raised))
