"""Task families: the kinds of embedded tasks, their frozen prompts, and how their answers are scored.

There is one family per benchmark of the survival paper, and `known_hazard`, whose true length distribution is
known. An answer may be worded freely, but its final answer must match the extraction rule of the benchmark.
"""

from __future__ import annotations

import json
import lzma
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lastword.errors import TaskError
from lastword.sandbox.runner import Verdict, run_programs
from lastword.validation import short_repr

MAX_WORDS = 200  # the maximum of a geometric length distribution
FOLDER = Path(__file__).parent / "data"
COUNTS = {"validation": 300, "test": 1200}  # frozen examples per family


@dataclass(frozen=True)
class Example:
    """A prompt with a reference answer.

    Every prompt ends with a newline, so that `prompt + answer` is one document. `target` is given to
    the scorer: the final answer of a text family, the hidden asserts of a code family, or the length distribution
    of a `known_hazard` prompt (`KnownLengths.parse`).
    """

    family: str
    prompt: str
    answer: str
    target: str


class TaskFamily(ABC):
    """A kind of task with its scorer."""

    runs_code = False  # whether scoring runs the answer as a program

    @abstractmethod
    def score(self, example: Example, text: str) -> bool:
        """Return whether `text` is a correct answer to the example."""

    def verdicts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Verdict]:
        """Return a verdict per pair of an example and the text of an answer."""
        scores = (self.score(example, text) for example, text in zip(examples, texts, strict=True))
        return [Verdict.PASSED if score else Verdict.FAILED for score in scores]


@dataclass(frozen=True)
class TextFamily(TaskFamily):
    """A family whose answers end in a final answer: the first match of a pattern, which must equal the target."""

    final_answer: re.Pattern[str]

    def score(self, example: Example, text: str) -> bool:
        match = self.final_answer.search(text)
        return match is not None and match.group(1) == example.target


@dataclass(frozen=True)
class CodeFamily(TaskFamily):
    """A family whose answers are programs: correct if the program and its hidden asserts run to the end."""

    completes_prompt: bool  # whether the prompt is the beginning of the program
    runs_code = True

    def score(self, example: Example, text: str) -> bool:
        return self.verdicts([example], [text]) == [Verdict.PASSED]

    def verdicts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Verdict]:
        """Run each answer with its tests and return its verdict; `sandbox_level` says what runs without bubblewrap."""
        programs = [
            f"{example.prompt if self.completes_prompt else ''}{text}\n{example.target}\n"
            for example, text in zip(examples, texts, strict=True)
        ]
        return [outcome.verdict for outcome in run_programs(programs, plain=True)]


@dataclass(frozen=True)
class KnownLengths:
    """The true distribution of the number of words in an answer: `probability[i]` is P(length = `minimum` + i).

    Every word is one token of the embedded tokenizers. The end token is not counted: it
    stands in slot length + 1, counted from 1.
    """

    minimum: int
    probability: tuple[float, ...]

    @classmethod
    def parse(cls, target: str) -> KnownLengths:
        """Read the `target` of a `known_hazard` example: a kind and integers, as in `["uniform", 10, 40]`."""
        match json.loads(target):
            case ["fixed", length]:
                return cls(length, (1.0,))
            case ["uniform", low, high]:
                return cls(low, (1 / (high - low + 1),) * (high - low + 1))
            case ["geometric", low, mean]:  # from word `low` on, stop after each word with probability 1 / mean
                stop = 1 / mean
                mass = [stop * (1 - stop) ** i for i in range(MAX_WORDS - low)]
                return cls(low, (*mass, 1 - sum(mass)))
            case ["two", low, high, share]:  # `low` with probability 1 / share, else `high`
                return cls(low, (1 / share, *(0.0,) * (high - low - 1), 1 - 1 / share))
        raise TaskError(f"{target!r} is not a length distribution: give fixed, uniform, geometric or two, and integers")

    @property
    def maximum(self) -> int:
        """The longest possible length in words."""
        return self.minimum + len(self.probability) - 1


class RepeatedWord(TaskFamily):
    """The family `known_hazard`: the quoted word, repeated as often as the prompt's length distribution allows."""

    def score(self, example: Example, text: str) -> bool:
        words, lengths = text.split(), KnownLengths.parse(example.target)
        index = len(words) - lengths.minimum
        possible = 0 <= index < len(lengths.probability) and lengths.probability[index] > 0
        return possible and set(words) == {example.prompt.split('"')[1]}


FAMILIES: dict[str, TaskFamily] = {
    # GSM8K: the first `#### n` that stands on a line of its own.
    "word_problems": TextFamily(re.compile(r"^#### (-?\d+)[ \t]*$", re.MULTILINE)),
    # MATH: the number in the final-answer sentence.
    "algebra": TextFamily(re.compile(r"Final Answer: The final answer is \$(-?\d+)\$")),
    # BBH: the closing sentence; its full stop must be there.
    "reasoning": TextFamily(re.compile(r"^So the answer is (.+)\.[ \t]*$", re.MULTILINE)),
    "complete_function": CodeFamily(completes_prompt=True),  # HumanEval
    "write_function": CodeFamily(completes_prompt=False),  # MBPP
    "known_hazard": RepeatedWord(),
}
BENCHMARKS = tuple(name for name in FAMILIES if name != "known_hazard")


def load_frozen(split: str, family: str) -> tuple[Example, ...]:
    """Return the held-out examples of a family: 300 of `validation` or 1,200 of `test`, always the same ones.

    >>> load_frozen("test", "algebra")[0].target
    '2'
    """
    path = frozen_path(split, family)
    if not path.exists():
        raise TaskError(
            f"there are no prompts of the split {short_repr(split)} for the task {short_repr(family)}; splits are "
            f"{', '.join(COUNTS)}, tasks {', '.join(FAMILIES)}"
        )
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        examples = tuple(Example(family, *json.loads(line)) for line in lines)
        if len(examples) != COUNTS[split]:
            raise ValueError(f"it has {len(examples)} examples, not {COUNTS[split]}")
        return examples
    except (OSError, EOFError, lzma.LZMAError, ValueError, TypeError) as error:
        raise TaskError(f"{path}, the prompts of {family}, cannot be read ({error}); install lastword again") from error


def frozen_path(split: str, family: str) -> Path:
    """Return the path of a family's prompts for a split: xz-compressed lines of [prompt, answer, target]."""
    return FOLDER / f"{split}-{family}.jsonl.xz"
