"""What the log of a training says: steps, seconds, where it was resumed, the last loss."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HARDWARE = "NVIDIA H200"  # of all that ship; a log does not say


@dataclass(frozen=True)
class History:
    """A training in a few numbers."""

    steps: int
    seconds: float
    resumed: tuple[int, ...]  # the steps at which a longer schedule took over
    loss: float  # on validation texts, the last


def history(log: list[dict[str, Any]]) -> History:
    """Of the lines of a log: a clock that starts again is a run that was resumed."""
    timed = [line for line in log if "seconds" in line]
    stops = [a for a, b in pairwise(timed) if b["seconds"] < a["seconds"]]
    return History(
        timed[-1]["step"],
        sum(line["seconds"] for line in [*stops, timed[-1]]),
        tuple(stop["step"] for stop in stops),
        [line["validation_loss"] for line in log if "validation_loss" in line][-1],
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
