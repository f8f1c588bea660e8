"""What a task is: an `Example` and the `Family` that makes and scores it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lastword.sandbox.outcome import Outcome
from lastword.sandbox.programs import run_programs


@dataclass(frozen=True)
class Example:
    """One prompt with one way of answering it.

    Every prompt ends in a newline, so that `prompt + answer` reads as a document. `target` is all a
    scorer needs: the final answer of a text family, the hidden asserts of a code family, the length
    distribution (see `known_hazard.Lengths`) of the known-hazard family.
    """

    family: str
    prompt: str
    answer: str
    target: str


class Family(ABC):
    """A kind of task. `generate` draws from what it is given alone, so a seed fixes every example."""

    name: str
    runs_code = False  # whether `score` runs the answer, in a sandbox: see CodeFamily

    @abstractmethod
    def generate(self, rng: random.Random, manner: random.Random | None = None) -> Example:
        """A new prompt with a reference answer in a style that the prompt announces only in part.

        `manner` draws what is the writer's choice, `rng` unless it is given: the same question in
        many manners is `generate(Random(7), Random(i))` for every i.
        """

    @abstractmethod
    def score(self, example: Example, text: str) -> bool:
        """Whether `text` answers the prompt. The wording is free, the final answer is not."""

    def score_all(self, examples: Sequence[Example], texts: Iterable[str]) -> list[bool]:
        """`score` for many answers; code families run several at a time."""
        return [self.score(e, text) for e, text in zip(examples, texts, strict=True)]


class CodeFamily(Family):
    """A family whose answers are run: right if the program that holds one comes to its end."""

    runs_code = True

    @abstractmethod
    def program(self, example: Example, text: str) -> str:
        """The answer with the hidden asserts behind it."""

    def score(self, example: Example, text: str) -> bool:
        return self.score_all([example], [text])[0]

    def score_all(self, examples: Sequence[Example], texts: Iterable[str]) -> list[bool]:
        return [outcome.passed for outcome in self.run_all(examples, texts)]

    def run_all(self, examples: Sequence[Example], texts: Iterable[str]) -> list[Outcome]:
        """What became of each answer. Without a sandbox, what is more than plain Python is refused."""
        programs = [self.program(e, text) for e, text in zip(examples, texts, strict=True)]
        return run_programs(programs, plain=True)
