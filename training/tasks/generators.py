"""All task generators, and disjoint splits: the hash of a prompt determines its split."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Literal

from lastword.errors import TaskError
from lastword.tasks import Example
from training.tasks import algebra, complete_function, known_hazard, reasoning, word_problems, write_function
from training.tasks.requests import remove_requests

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
GENERATORS: dict[str, Callable[[random.Random, random.Random], Example]] = {
    "word_problems": word_problems.generate,
    "algebra": algebra.generate,
    "reasoning": reasoning.generate,
    "complete_function": complete_function.generate,
    "write_function": write_function.generate,
    "known_hazard": known_hazard.generate,
}


def generate(family: str, rng: random.Random, style_rng: random.Random | None = None) -> Example:
    """Return a new prompt with a reference answer; the prompt requests only a part of the answer's style.

    `style_rng` draws the style (default: `rng`): `generate(family, Random(7), Random(i))` is the same
    question in another style for every i.
    """
    return GENERATORS[family](rng, rng if style_rng is None else style_rng)


def split_of(prompt: str) -> Split:
    """Return the only split that may contain the prompt: 85% train, 5% validation, 10% test.

    Requests about the style are removed first: a held-out question is not trained on in another style.

    >>> split_of("Question: What is 2 + 2?")
    'train'
    >>> split_of("Question: What is 2 + 2? Be brief.")
    'train'
    """
    question = remove_requests(prompt)
    bucket = int.from_bytes(sha256(question.encode()).digest()[:4], "big") % 100
    return "test" if bucket < 10 else "validation" if bucket < 15 else "train"


def example_stream(split: str, family: str, seed: int = 0) -> Iterator[Example]:
    """Return an endless stream of examples of a split. Held-out splits never repeat a prompt; train may."""
    if split not in SPLITS:
        raise TaskError(f"unknown split {split!r}; allowed are {', '.join(SPLITS)}")
    return _examples(split, family, random.Random(f"{family}/{split}/{seed}"))


def _examples(split: str, family: str, rng: random.Random) -> Iterator[Example]:
    prompts: set[str] = set()
    while True:
        example = generate(family, rng)
        if split_of(example.prompt) != split or example.prompt in prompts:
            continue
        if split != "train":
            prompts.add(example.prompt)
        yield example
