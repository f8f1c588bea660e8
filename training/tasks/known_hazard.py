"""Answers whose length follows a distribution named in the prompt: the true hazard is known."""

from __future__ import annotations

import json
import random

from lastword.tasks import Example
from lastword.tasks.families import KnownLengths

FILLERS = ("go", "the", "in", "and", "is", "one", "to", "of")


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw a word and a length distribution; the answer repeats the word as often as a draw from it."""
    word = rng.choice(FILLERS)
    kind = rng.choice(("fixed", "uniform", "geometric", "two"))
    numbers, request = REQUESTS[kind](rng)
    target = json.dumps([kind, *numbers])
    opening = f'{rng.choice(("Write", "Say", "Repeat the word"))} "{word}" {request}'
    count = draw_length(KnownLengths.parse(target), style_rng)
    return Example("known_hazard", f"{opening}\nWords:\n", " ".join([word] * count), target)


def draw_length(lengths: KnownLengths, rng: random.Random) -> int:
    """Draw a length."""
    return rng.choices(range(lengths.minimum, lengths.maximum + 1), weights=lengths.probability)[0]


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
