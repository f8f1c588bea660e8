"""Train, validation and test: disjoint, because a prompt's own hash says where it belongs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from typing import Literal

from lastword.errors import TaskError
from lastword.tasks import request
from lastword.tasks.task import Example, Family

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def split_of(prompt: str) -> Split:
    """The only split a prompt may appear in: 85% train, 5% validation, 10% test.

    What a prompt says about the manner of its answer is left out, so that a held-out question is not
    trained on in another manner.

    >>> split_of("Question: What is 2 + 2?")
    'train'
    >>> split_of("Question: What is 2 + 2? Be brief.")
    'train'
    """
    question = request.without(prompt)
    bucket = int.from_bytes(sha256(question.encode()).digest()[:4], "big") % 100
    return "test" if bucket < 10 else "validation" if bucket < 15 else "train"


def stream(split: str, family: Family, seed: int = 0) -> Iterator[Example]:
    """Examples of one split without end. Held-out splits never repeat a prompt; train may."""
    if split not in SPLITS:
        raise TaskError(f"unknown split {split!r}; allowed are {', '.join(SPLITS)}.")
    return _examples(split, family, random.Random(f"{family.name}/{split}/{seed}"))


def _examples(split: str, family: Family, rng: random.Random) -> Iterator[Example]:
    seen: set[str] = set()
    while True:
        example = family.generate(rng)
        if split_of(example.prompt) != split or example.prompt in seen:
            continue
        if split != "train":
            seen.add(example.prompt)
        yield example
