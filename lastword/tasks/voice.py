"""How an answer is written: the part of its length that the question does not fix."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lastword.tasks import request

BARE, SAID, EXPLAINED = range(3)
DETAIL = (request.BRIEF, request.SENTENCES, request.EXPLAIN)


@dataclass(frozen=True)
class Step:
    """One step of a solution in three lengths; a missing one is told by the next shorter."""

    bare: str
    said: str = ""
    explained: str = ""

    def told(self, detail: int) -> str:
        """The text of this step at a level of detail."""
        return (self.bare, self.said or self.bare, self.explained or self.said or self.bare)[detail]


@dataclass(frozen=True)
class Voice:
    """One writer's habits, drawn once per answer; `asked` is what the prompt says of them."""

    detail: int
    numbered: bool
    opens: bool
    checks: bool
    asked: str

    @classmethod
    def draw(cls, rng: random.Random) -> Voice:
        """A voice at random; the four habits are independent, and two of them may be asked for."""
        detail = rng.choices((BARE, SAID, EXPLAINED), weights=(4, 4, 3))[0]
        checks = rng.random() < 0.3
        return cls(
            detail=detail,
            numbered=rng.random() < 0.15,
            opens=rng.random() < 0.3,
            checks=checks,
            asked=request.told(rng, DETAIL[detail], *[request.CHECK] * checks),
        )

    def write(self, opening: str, steps: Sequence[Step], check: str, closing: str) -> str:
        """The whole answer, a line per step; `opening` and `check` if this voice has the habit."""
        told = [text for step in steps if (text := step.told(self.detail))]
        if self.numbered:
            told = [f"Step {i}: {text}" for i, text in enumerate(told, 1)]
        lines = [opening] * self.opens + told + [check] * self.checks + [closing]
        return "\n".join(lines)


def words(text: str) -> tuple[str, ...]:
    """The words of a text, for lists that read better as one."""
    return tuple(text.split())
