"""Sample and Task: what an evaluation asks, and how the answers are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol, runtime_checkable

from lastword.evaluate.records import Fields


@dataclass(frozen=True)
class Sample:
    """One prompt of a task. `index` is its number there and, with the task's name, its identity.

    A task may lay a conversation out itself, as (role, content) `turns`: then those are asked, and
    `prompt` is only their text. A last turn of the assistant is one to be continued.
    """

    task: str
    index: int
    prompt: str
    stop: tuple[str, ...] = ()  # the answer is cut before the first of these
    split: str = "test"
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """Of the prompt: two records with the same digest were asked the same."""
        asked = repr(self.turns) if self.turns else self.prompt
        return sha256(asked.encode()).hexdigest()[:16]

    def cut(self, text: str) -> str:
        """The text up to its first stop string.

        >>> Sample("t", 0, "Q", stop=("Q:", "##")).cut("4 ## Q: next")
        '4 '
        """
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        return text[: min(ends)] if ends else text


@runtime_checkable
class Task(Protocol):
    """A named list of samples with a scorer. Scoring may run code, so it takes many at a time."""

    name: str
    group: str  # the benchmark it belongs to: a table adds up the tasks of one group
    version: str  # what its score means; under another version a sample is asked and scored anew

    def samples(self, limit: int | None = None) -> list[Sample]: ...

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]: ...


def conditions(task: Task) -> Fields:
    """What a task's scores depend on besides the answers, for its records.

    A task that runs code has a method `conditions()`, which says how the code is kept in; it is asked
    before the first answer, so that a missing sandbox stops a run before it costs anything.
    """
    return task.conditions() if hasattr(task, "conditions") else {}


def refused(task: Task, sample: Sample, text: str) -> bool:
    """Whether an answer scored 0 unrun, for want of a sandbox.

    A task that refuses code has a method `refused(sample, text)`, which is asked after the answer was scored.
    """
    return bool(task.refused(sample, text)) if hasattr(task, "refused") else False
