"""Answers whose length follows a distribution named in the prompt: the true hazard is known."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from lastword.errors import TaskError
from lastword.tasks.task import Example, Family

FILLERS = ("go", "the", "in", "and", "is", "one", "to", "of")
LONGEST = 200


@dataclass(frozen=True)
class Lengths:
    """The true distribution of an answer's length: `probability[i]` is P(length = `first` + i).

    Every filler word is one token of the recipe's tokenizer: words and tokens are the same count. The
    end token is not counted: on slots numbered from 1 it stands in slot length + 1.
    """

    first: int
    probability: tuple[float, ...]

    @classmethod
    def parse(cls, target: str) -> Lengths:
        """Read the `target` of an example: a kind and its integers, as in `["uniform", 10, 40]`."""
        kind, *numbers = json.loads(target)
        if kind == "fixed":
            (n,) = numbers
            return cls(n, (1.0,))
        if kind == "uniform":
            a, b = numbers
            return cls(a, (1 / (b - a + 1),) * (b - a + 1))
        if kind == "geometric":
            # After word a, stop after each word with chance 1 / mean; LONGEST is a hard stop.
            a, mean = numbers
            stop = 1 / mean
            mass = [stop * (1 - stop) ** i for i in range(LONGEST - a)]
            return cls(a, (*mass, 1 - sum(mass)))
        if kind == "two":
            a, b, share = numbers  # a with chance 1 / share, else b
            return cls(a, (1 / share, *(0.0,) * (b - a - 1), 1 - 1 / share))
        raise TaskError(
            f"unknown length distribution {kind!r}; allowed are fixed, uniform, geometric and two. "
            "Pass the target of a known_hazard example."
        )

    @property
    def last(self) -> int:
        """The longest possible length."""
        return self.first + len(self.probability) - 1

    @property
    def mean(self) -> float:
        """The expected length.

        >>> Lengths.parse('["uniform", 10, 20]').mean
        15.0
        """
        return round(sum(n * p for n, p in enumerate(self.probability, self.first)), 12)

    def hazard(self, slots: int) -> list[float]:
        """P(length = k | length >= k) for k = 1..slots; 1 from the longest possible length on.

        >>> [round(h, 2) for h in Lengths.parse('["uniform", 2, 4]').hazard(5)]
        [0.0, 0.33, 0.5, 1.0, 1.0]
        """
        hazard, left = [0.0] * (self.first - 1), 1.0
        for p in self.probability[:-1]:
            hazard.append(p / left)
            left -= p
        return (hazard + [1.0] * slots)[:slots]

    def draw(self, rng: random.Random) -> int:
        """A length at random."""
        return rng.choices(range(self.first, self.last + 1), weights=self.probability)[0]


class KnownHazard(Family):
    """Repeat a word; how often is a draw from the distribution in the prompt."""

    name = "known_hazard"

    def generate(self, rng: random.Random, manner: random.Random | None = None) -> Example:
        manner = manner or rng
        word = rng.choice(FILLERS)
        kind = rng.choice(("fixed", "uniform", "geometric", "two"))
        numbers, request = REQUESTS[kind](rng)
        target = json.dumps([kind, *numbers])
        opening = f'{rng.choice(("Write", "Say", "Repeat the word"))} "{word}" {request}'
        count = Lengths.parse(target).draw(manner)
        return Example(self.name, f"{opening}\nWords:\n", " ".join([word] * count), target)

    def score(self, example: Example, text: str) -> bool:
        """Only the word asked for, as often as the distribution allows."""
        words, lengths = text.split(), Lengths.parse(example.target)
        asked = example.prompt.split('"')[1]
        at = len(words) - lengths.first
        allowed = 0 <= at < len(lengths.probability) and lengths.probability[at] > 0
        return allowed and set(words) == {asked}


def _fixed(rng: random.Random) -> tuple[list[int], str]:
    n = rng.randint(10, 120)
    return [n], f"exactly {n} times."


def _uniform(rng: random.Random) -> tuple[list[int], str]:
    a = rng.randrange(10, 101, 5)
    b = a + rng.randrange(10, 101, 5)
    return [a, b], f"from {a} to {b} times, every count as likely."


def _geometric(rng: random.Random) -> tuple[list[int], str]:
    a, mean = rng.randrange(10, 61, 5), rng.randrange(5, 51, 5)
    return [a, mean], f"{a} times, then after each word stop with chance 1 in {mean}."


def _two(rng: random.Random) -> tuple[list[int], str]:
    a = rng.randrange(10, 101, 5)
    b, share = a + rng.randrange(10, 101, 5), rng.choice((2, 3, 4))
    return [a, b, share], f"{a} times with chance 1 in {share}, else {b} times."


REQUESTS = {"fixed": _fixed, "uniform": _uniform, "geometric": _geometric, "two": _two}
