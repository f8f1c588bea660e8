"""Progress of a batch: the predicted remaining time, and the summary at the end.

Some prompts, spread over the file, are probed first. The other prompts are assumed to be like these until
their answers report their own predictions. The remaining time is the predicted work of the unanswered prompts
divided by the measured speed, so the order of the answers does not matter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.recipe.recipe import Recipe

MAX_PROBES = 64  # enough for a mean with an error of about 10 %


@dataclass(frozen=True)
class BatchProgress:
    """Counts and seconds of a running batch."""

    done: int  # prompts with a line, including those of earlier runs
    total: int
    failed: int  # part of `done`
    seconds: float  # since the first request of this run
    seconds_left: float | None  # predicted; None: not known yet


@dataclass(frozen=True)
class BatchSummary:
    """The counts, tokens and seconds of a finished run; `path` is the file of answers."""

    path: Path
    prompts: int
    answered: int
    failed: int
    before: int  # answered or failed in earlier runs
    tokens: int  # in answers of this run
    seconds: float

    def __str__(self) -> str:
        before = f" ({self.before} by an earlier run)" if self.before else ""
        skipped = self.prompts - self.answered - self.failed
        unanswered = f", {skipped} left out" if skipped else ""
        counts = f"{self.answered} answered, {self.failed} failed{before}{unanswered}; "
        speed = ""
        if self.seconds:  # 0 if all prompts were answered by earlier runs
            speed = f"{self.tokens} tokens in {self.seconds:.1f} s, {self.tokens / self.seconds:.1f} tokens/s; "
        return f"{counts}{speed}answers in {self.path}"


class RemainingTime:
    """An estimator of the remaining seconds; `predicted` has the work of probed requests by index."""

    def __init__(self, waiting: int, predicted: Mapping[int, float]) -> None:
        self._probed = {index: work for index, work in predicted.items() if work < math.inf}
        self._mean = sum(self._probed.values()) / len(self._probed) if self._probed else None
        self._unprobed = waiting - len(self._probed)
        self._unprobed_work = self._unprobed * (self._mean or 0.0)
        self._reported_work, self._reports = 0.0, 0  # of finished requests that were not probed
        self._finished_work = 0.0
        self._start = time.perf_counter()

    def finish(self, index: int, work: float | None) -> None:
        """Count a finished request; `work` is the prediction in its reply, or None."""
        if index not in self._probed and work is not None:
            self._reported_work, self._reports = self._reported_work + work, self._reports + 1
        self._finished_work += self.skip(index, work)

    def skip(self, index: int, work: float | None = None) -> float:
        """Remove a request without counting it as finished, and return its predicted work."""
        if index in self._probed:
            return self._probed.pop(index)
        work = work if work is not None else self._mean or 0.0
        self._unprobed -= 1
        self._unprobed_work -= work
        return work

    @property
    def seconds(self) -> float:
        """The seconds since this object was created."""
        return time.perf_counter() - self._start

    @property
    def work_left(self) -> float | None:
        """The predicted work of the unanswered requests; None: not known yet."""
        probed = sum(self._probed.values())
        if not self._unprobed:
            return probed
        if self._mean is not None:
            return probed + max(self._unprobed_work, float(self._unprobed))  # the difference may be negative
        return probed + self._unprobed * self._reported_work / self._reports if self._reports else None

    @property
    def seconds_left(self) -> float | None:
        """The predicted remaining seconds; None: not known yet."""
        work = self.work_left
        if work == 0:
            return 0.0
        return None if work is None or not self._finished_work else work * self.seconds / self._finished_work


def estimated_work(recipe: Recipe, prompt_tokens: int, slots: float) -> float:
    """Estimate the tokens computed in one pass per slot: one token with a cache, otherwise the row."""
    return float(slots if recipe.cache.traits.stores_states else slots * (prompt_tokens + slots))


def predicted_work(recipe: Recipe, details: Mapping[str, Any]) -> float | None:
    """Return the predicted work of an answer from the details of its reply; None without a horizon."""
    horizon, expected = (details.get(name) for name in ("horizon", "expected_length"))
    if not horizon:
        return None
    slots = float(horizon) if expected is None else min(float(expected), float(horizon))
    return estimated_work(recipe, details["prompt_tokens"], slots)
