"""Handing out: which questions the next free worker is given.

Longest predicted first, and less at a time as fewer are left: whoever comes last comes with the shortest
answers, so that no worker ends alone with a long one. Pure bookkeeping; it knows no worker but by number.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

ORDERS = PREDICTED, ROUND_ROBIN = "predicted", "round robin"
TRIES = 3  # workers that may die over a question before it is given up
WAVES = 2  # jobs that every worker should still get, as jobs become smaller


class Handing:
    """Questions by their places, those still to be given.

    `places` come in the order they are to be given, at most `most` at a time; `deaths` counts the workers
    that died over some of them before.
    """

    def __init__(
        self,
        places: Sequence[int],
        *,
        workers: int,
        most: int,
        order: str,
        deaths: Mapping[int, int] | None = None,
    ) -> None:
        self._most, self._workers = most, workers
        self._shared = order == PREDICTED
        self._deaths = Counter(deaths or {})
        self._alone = deque(place for place in places if self._deaths[place])
        rest = [place for place in places if not self._deaths[place]]
        dealt = [rest] if self._shared else [rest[first::workers] for first in range(workers)]
        self._left = [*map(deque, dealt)]

    def __bool__(self) -> bool:
        return bool(self._alone) or any(self._left)

    def next(self, worker: int, sharing: int | None = None) -> list[int]:
        """What to give this worker now; nothing where nothing is left for it.

        Who was with a worker that died goes first and alone, so that it takes no neighbour along. `sharing`
        workers are there to share what is left.
        """
        if self._alone:
            return [self._alone.popleft()]
        left = self._left[0 if self._shared else worker % len(self._left)]
        size = self._most
        if self._shared:
            size = max(1, min(size, len(left) // (WAVES * (sharing or self._workers))))
        return [left.popleft() for _ in range(min(size, len(left)))]

    def died(self, places: Sequence[int]) -> list[int]:
        """Take back what a worker had that died; those that are given up are returned."""
        self._deaths.update(places)
        again = [place for place in places if self._deaths[place] < TRIES]
        self._alone.extend(again)
        return [place for place in places if self._deaths[place] >= TRIES]

    def apart(self, places: Sequence[int]) -> None:
        """Take back what failed together: each is given alone."""
        self._alone.extend(places)

    def retire(self, worker: int) -> None:
        """This worker will not come again: what only it was to be given goes to whoever asks."""
        if not self._shared:
            left = self._left[worker % len(self._left)]
            self._alone.extend(left)
            left.clear()
