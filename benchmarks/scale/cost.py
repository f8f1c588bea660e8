"""Cost: seconds of a pass by the columns it computes, from what was measured on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from benchmarks.passes.record import PassLine, read

Numbers = NDArray[np.float64]

BENCH = Path(__file__).parent.parent / "records" / "bench" / "llada-8b.json"
# Passes of the loop under the caches whose passes cost what they compute; one that is not
# captured waits for the host, and the authors' loop is another program.
FITTED = ("passes", "blocks", "probe", "answers", "mixed")
LEFT_OUT = ("bare model", "not captured", "prefix", "probe included")


@dataclass(frozen=True)
class PassCost:
    """A pass takes `fixed` seconds, mostly to read the weights, and `column` more for each column."""

    fixed: float
    column: float

    @overload
    def seconds(self, columns: float, passes: float = 1.0) -> float: ...
    @overload
    def seconds(self, columns: Numbers, passes: Numbers | float = 1.0) -> Numbers: ...
    def seconds(self, columns: float | Numbers, passes: float | Numbers = 1.0) -> float | Numbers:
        """Return the seconds of `passes` that compute `columns` together."""
        return self.fixed * passes + self.column * columns


@dataclass(frozen=True)
class Measured:
    """A line of the bench: what ran, and how long it took."""

    case: str
    passes: float
    columns: float  # of all of them
    seconds: float


def measured(path: Path = BENCH) -> list[Measured]:
    """The lines that a cost of passes can be held against."""
    lines = read(path).lines
    return [_of(line) for line in lines if line.line in FITTED and not any(part in line.case for part in LEFT_OUT)]


def _of(line: PassLine) -> Measured:
    name = f"{line.line}: {line.case}"
    if line.tokens_computed is None or line.ms is None:
        raise ValueError(f"{name} of {BENCH} has no columns or no time")
    if line.forward_passes is None or line.seconds is None:
        return Measured(name, 1.0, line.tokens_computed, line.ms / 1000)
    return Measured(name, float(line.forward_passes), line.tokens_computed, line.seconds)


def fitted(lines: Sequence[Measured]) -> PassCost:
    """The straight line that errs least, in shares of what was measured."""
    seconds = np.array([line.seconds for line in lines])
    terms = np.array([[line.passes, line.columns] for line in lines]) / seconds[:, None]
    (fixed, column), *_ = np.linalg.lstsq(terms, np.ones(len(lines)), rcond=None)
    return PassCost(float(fixed), float(column))


def errors(cost: PassCost, lines: Sequence[Measured]) -> dict[str, float]:
    """By how much of what was measured each line is missed."""
    return {line.case: cost.seconds(line.columns, line.passes) / line.seconds - 1 for line in lines}
