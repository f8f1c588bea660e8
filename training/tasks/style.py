"""The style of an answer: the part of its length that the question does not determine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from training.tasks import requests

BARE, SENTENCES, EXPLAINED = range(3)  # levels of detail
DETAIL = (requests.BRIEF, requests.SENTENCES, requests.EXPLAIN)


@dataclass(frozen=True)
class SolutionStep:
    """A step of a solution at three levels of detail; the next shorter text replaces a missing one."""

    bare: str
    sentence: str = ""
    explained: str = ""

    def text(self, detail: int) -> str:
        """Return the text of this step at a level of detail."""
        sentence = self.sentence or self.bare
        return (self.bare, sentence, self.explained or sentence)[detail]


@dataclass(frozen=True)
class Style:
    """The style of one answer. `requests` are the sentences of the prompt that request a part of it."""

    detail: int
    numbered: bool
    opens: bool  # with a sentence before the first step
    checks: bool  # the result at the end
    requests: str

    @classmethod
    def draw(cls, rng: random.Random) -> Style:
        """Draw a style; its four properties are independent, and two of them may be requested."""
        detail = rng.choices((BARE, SENTENCES, EXPLAINED), weights=(4, 4, 3))[0]
        checks = rng.random() < 0.3
        return cls(
            detail=detail,
            numbered=rng.random() < 0.15,
            opens=rng.random() < 0.3,
            checks=checks,
            requests=requests.draw_requests(rng, DETAIL[detail], *[requests.CHECK] * checks),
        )

    def write(self, opening: str, steps: Sequence[SolutionStep], check: str, closing: str) -> str:
        """Return the whole answer, one line per step, with `opening` and `check` if the style has them."""
        texts = [text for step in steps if (text := step.text(self.detail))]
        if self.numbered:
            texts = [f"Step {i}: {text}" for i, text in enumerate(texts, 1)]
        lines = [opening] * self.opens + texts + [check] * self.checks + [closing]
        return "\n".join(lines)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, to write a long tuple of words as one string."""
    return tuple(text.split())
