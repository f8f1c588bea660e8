"""The `Task` contract (samples with a scorer), and the embedded tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any, Protocol, runtime_checkable

from lastword.errors import TaskError
from lastword.evaluate.records import Fields
from lastword.sandbox.runner import Verdict, sandbox_info
from lastword.tasks import BENCHMARKS, FAMILIES, load_frozen
from lastword.validation import is_list, short_repr


@dataclass(frozen=True)
class Sample:
    """A prompt of a task, identified by the task's name and `index`.

    If `turns`, as (role, content), are given, the model receives this conversation, and `prompt` is only its
    text. If the last turn is the assistant's, the answer continues it.
    """

    task: str
    index: int
    prompt: str
    stop: tuple[str, ...] = ()  # the answer is cut before the first of these
    split: str = "test"
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the turns or, without turns, of the prompt."""
        content = repr(self.turns) if self.turns else self.prompt
        return sha256(content.encode()).hexdigest()[:16]

    def cut(self, text: str) -> str:
        """Return the text before its first stop string.

        >>> Sample("t", 0, "Q", stop=("Q:", "##")).cut("4 ## Q: next")
        '4 '
        """
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        return text[: min(ends)] if ends else text


@runtime_checkable
class Task(Protocol):
    """A named list of samples with a scorer.

    A task that runs code has two more methods. `conditions()` returns fields for its records, and may raise an
    error before the first answer. `refused(sample, text)` returns whether the code of an answer, which
    `score` received before, was not run because there is no sandbox.
    """

    name: str
    group: str  # its benchmark: tables combine the tasks of a group
    version: str  # of prompts and scorer: records of other versions are not reused

    def samples(self, limit: int | None = None) -> list[Sample]: ...

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]: ...


def read_samples(task: Task, limit: int | None) -> list[Sample]:
    """Return the checked samples of a task, at most `limit`."""
    if isinstance(task, type) or not isinstance(task, Task):
        raise TaskError(
            f"evaluate was given the task {short_repr(task)}; give objects with name, group, version, samples(limit) "
            "and score(samples, texts), such as those of lastword.evaluate.embedded_tasks()"
        )
    samples = task.samples(limit)
    if not is_list(samples) or not all(isinstance(sample, Sample) and sample.task == task.name for sample in samples):
        raise TaskError(
            f"{task.name}.samples returned {short_repr(samples)}; it must return a list of Sample(task={task.name!r})"
        )
    if len({sample.index for sample in samples}) < len(samples) or len(samples) > (limit or len(samples)):
        raise TaskError(f"{task.name}.samples must return different indices, and at most `limit` samples")
    return list(samples)


def check_scores(name: str, scores: Any, count: int) -> None:
    """Raise TaskError unless a scorer returned a finite number per sample."""
    kinds = (bool, int, float)
    if not is_list(scores) or len(scores) != count or not all(isinstance(s, kinds) and isfinite(s) for s in scores):
        raise TaskError(f"{name}.score returned {short_repr(scores)}; it must return a list of {count} finite numbers")


class EmbeddedTask:
    """A task with the frozen prompts and the scorer of an embedded task family."""

    group, version = "tiny", "version 1"

    def __init__(self, family: str, split: str = "test") -> None:
        self.name, self.split, self.examples = family, split, load_frozen(split, family)
        self._verdicts: dict[tuple[int, str], Verdict] = {}

    def samples(self, limit: int | None = None) -> list[Sample]:
        return [
            Sample(self.name, index, example.prompt, split=self.split)
            for index, example in enumerate(self.examples[:limit])
        ]

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]:
        """Return 1.0 for each correct answer, else 0.0. Equal answers, which are frequent, are scored once."""
        answers = [(sample.index, text) for sample, text in zip(samples, texts)]
        new = [answer for answer in dict.fromkeys(answers) if answer not in self._verdicts]
        verdicts = FAMILIES[self.name].verdicts([self.examples[index] for index, _ in new], [text for _, text in new])
        self._verdicts.update(zip(new, verdicts))
        return [float(self._verdicts[answer] is Verdict.PASSED) for answer in answers]

    def conditions(self) -> Fields:
        return {"sandbox": sandbox_info(plain=True)} if FAMILIES[self.name].runs_code else {}

    def refused(self, sample: Sample, text: str) -> bool:
        return self._verdicts.get((sample.index, text)) is Verdict.REFUSED


def embedded_tasks(names: Sequence[str] = ("tiny",), split: str = "test") -> list[Task]:
    """Return embedded tasks by name; `tiny` stands for the five families in `BENCHMARKS`."""
    families = [family for name in names for family in (BENCHMARKS if name == "tiny" else (name,))]
    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        raise TaskError(f"unknown embedded task {unknown[0]!r}; known: tiny, {', '.join(FAMILIES)}")
    return [EmbeddedTask(family, split) for family in dict.fromkeys(families)]
