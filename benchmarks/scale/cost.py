"""The seconds of a forward pass as a function of the tokens it computes, fitted to measurements on an H200."""

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
# Forward passes of the decoding loop whose time depends on the tokens computed. Without CUDA graphs a pass waits
# for the host, and the plain loop is a different program.
FITTED = ("passes", "blocks", "probe", "answers", "mixed")
LEFT_OUT = ("bare model", "no CUDA graphs", "prefix", "probe included")


@dataclass(frozen=True)
class PassCost:
    """A forward pass takes `fixed` seconds, mostly to read the weights, and `token` seconds more per token."""

    fixed: float
    token: float

    @overload
    def seconds(self, tokens: float, passes: float = 1.0) -> float: ...
    @overload
    def seconds(self, tokens: Numbers, passes: Numbers | float = 1.0) -> Numbers: ...
    def seconds(self, tokens: float | Numbers, passes: float | Numbers = 1.0) -> float | Numbers:
        """Return the seconds of `passes` forward passes that compute `tokens` together."""
        return self.fixed * passes + self.token * tokens


@dataclass(frozen=True)
class Measured:
    """A measured line: its forward passes, tokens computed and seconds."""

    case: str
    passes: float
    tokens: float  # of all passes
    seconds: float


def measured(path: Path = BENCH) -> list[Measured]:
    """Return the measured lines to which the cost is fitted."""
    lines = read(path).lines
    return [_of(line) for line in lines if line.line in FITTED and not any(part in line.case for part in LEFT_OUT)]


def _of(line: PassLine) -> Measured:
    name = f"{line.line}: {line.case}"
    if line.tokens_computed is None or line.ms is None:
        raise ValueError(f"{name} of {BENCH} has no tokens or no time")
    if line.forward_passes is None or line.seconds is None:
        return Measured(name, 1.0, line.tokens_computed, line.ms / 1000)
    return Measured(name, float(line.forward_passes), line.tokens_computed, line.seconds)


def fitted(lines: Sequence[Measured]) -> PassCost:
    """Fit a straight line with the least relative squared error."""
    seconds = np.array([line.seconds for line in lines])
    terms = np.array([[line.passes, line.tokens] for line in lines]) / seconds[:, None]
    (fixed, token), *_ = np.linalg.lstsq(terms, np.ones(len(lines)), rcond=None)
    return PassCost(float(fixed), float(token))


def errors(cost: PassCost, lines: Sequence[Measured]) -> dict[str, float]:
    """Return the relative error of the fit for each line."""
    return {line.case: cost.seconds(line.tokens, line.passes) / line.seconds - 1 for line in lines}
