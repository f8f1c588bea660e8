"""Two recipes on the same samples: is the difference more than luck?"""

from __future__ import annotations

import math
from collections.abc import Sequence


def paired_p(base: Sequence[bool], other: Sequence[bool]) -> float:
    """Exact two-sided McNemar test: are wins and losses against the baseline a fair coin?

    >>> paired_p([True] * 10, [True] * 10), paired_p([True] * 10, [False] * 10)
    (1.0, 0.001953125)
    """
    wins = sum(o and not b for b, o in zip(base, other))
    losses = sum(b and not o for b, o in zip(base, other))
    n, k = wins + losses, min(wins, losses)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def standard_error(scores: Sequence[float]) -> float:
    """Of a mean, as evaluation harnesses report it."""
    n = len(scores)
    mean = sum(scores) / n
    return math.sqrt(sum((s - mean) ** 2 for s in scores) / (n - 1) / n) if n > 1 else 0.0
