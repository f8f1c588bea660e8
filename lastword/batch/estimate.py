"""Estimate: how long the rest of a batch will take, by what is predicted of its answers.

Some of the prompts that wait are probed first, evenly spread over the file. A prompt that was not probed is
taken to be like those that were, until its answer says what its own probe did. What is left is weighed by
the work that expected slots make, so that it does not matter in which order an engine answers; how many
seconds it takes is measured on the way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from lastword.recipe.recipe import Recipe

PROBED = 64  # prompts; their mean is then within a tenth or so


class RemainingTime:
    """Seconds that are left, given what was predicted and what was done since."""

    def __init__(self, waiting: int, predicted: Mapping[int, float]) -> None:
        self._probed = {at: own for at, own in predicted.items() if own < math.inf}
        known = self._probed.values()
        self._mean = sum(known) / len(known) if known else None
        self._others = waiting - len(known)  # prompts that wait and were not probed
        self._promised = self._others * (self._mean or 0.0)  # work of those
        self._told, self._tellers = 0.0, 0  # work that answers of others told, and how many did
        self._done = 0.0  # work that was predicted of all that was answered
        self._began = time.perf_counter()

    def finish(self, index: int, own: float | None) -> None:
        """A prompt has its answer, which says what work was predicted of it, if it does."""
        if index not in self._probed and own is not None:
            self._told, self._tellers = self._told + own, self._tellers + 1
        self._done += self._gone(index, own)

    def skip(self, index: int) -> None:
        """A prompt will not be asked: there is less to do, and nothing was done."""
        self._gone(index, None)

    def _gone(self, index: int, own: float | None) -> float:
        """The prompt no longer waits; the work that was counted for it."""
        if (known := self._probed.pop(index, None)) is not None:
            return known
        used = own if own is not None else self._mean or 0.0
        self._others -= 1
        self._promised -= used
        return used

    @property
    def seconds(self) -> float:
        """Since the first prompt was asked."""
        return time.perf_counter() - self._began

    @property
    def work_left(self) -> float | None:
        """Predicted of those that wait; None: nothing was predicted yet."""
        if not self._others:
            rest = 0.0
        elif self._mean is not None:
            rest = max(self._promised, float(self._others))  # earlier ones may have used it up
        elif self._tellers:
            rest = self._others * self._told / self._tellers
        else:
            return None
        return sum(self._probed.values()) + rest

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest is predicted to take; None: nobody can say yet."""
        rest = self.work_left
        if rest == 0:
            return 0.0
        return None if rest is None or not self._done else rest * self.seconds / self._done


def estimated_work(recipe: Recipe, prompt: int, slots: float) -> float:
    """What an answer of so many slots behind so many tokens takes, in columns as far as can be told.

    Passes grow with the slots; without a cache every one computes prompt and answer.
    """
    return float(slots if recipe.cache.traits.stores_states else slots * (prompt + slots))


def predicted_work(recipe: Recipe, facts: Mapping[str, Any]) -> float | None:
    """The work that was predicted of an answer, as its reply says; None: it does not."""
    horizon, expected = (facts.get(name) for name in ("horizon", "expected_length"))
    if not horizon:
        return None
    slots = float(horizon) if expected is None else min(float(expected), float(horizon))
    return estimated_work(recipe, facts["prompt_tokens"], slots)
