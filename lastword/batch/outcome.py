"""Outcome: how far a batch is, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BatchProgress:
    """How far a batch is."""

    done: int  # prompts that have a line, those of earlier runs included
    total: int
    failed: int  # of those done
    seconds: float  # since the first prompt of this run was asked
    seconds_left: float | None  # seconds that the rest is predicted to take; None: nobody can say yet


@dataclass(frozen=True)
class BatchSummary:
    """What a batch came to; `path` is the file that was written."""

    path: Path
    prompts: int
    answered: int
    failed: int
    before: int  # of both, those that earlier runs wrote
    tokens: int  # written by this run
    seconds: float  # that it took to answer

    def __str__(self) -> str:
        pace = f"{self.tokens / self.seconds:.1f} tokens/s" if self.seconds else "nothing to do"
        before = f", {self.before} of them before" if self.before else ""
        left = self.prompts - self.answered - self.failed
        rest = f", {left} not asked" if left else ""
        return (
            f"{self.answered} answered, {self.failed} failed{before}{rest}; {self.tokens} tokens in "
            f"{self.seconds:.1f} s, {pace}; wrote {self.path}"
        )
