"""Training logs: steps, seconds, the steps at which a run was resumed, and the last loss."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HARDWARE = "NVIDIA H200"  # of all shipped models; a log does not contain it
LOGS = Path(__file__).parent.parent / "benchmarks" / "records" / "training"


@dataclass(frozen=True)
class History:
    """The summary of a training run."""

    steps: int
    seconds: float
    resumed: tuple[int, ...]  # steps at which the run was resumed with a longer schedule
    loss: float  # the last validation loss


def history(log: list[dict[str, Any]]) -> History:
    """Summarise the lines of a log. A run was resumed wherever the seconds restart at 0."""
    timed = [line for line in log if "seconds" in line]
    stops = [a for a, b in pairwise(timed) if b["seconds"] < a["seconds"]]
    return History(
        timed[-1]["step"],
        sum(line["seconds"] for line in [*stops, timed[-1]]),
        tuple(stop["step"] for stop in stops),
        [line["validation_loss"] for line in log if "validation_loss" in line][-1],
    )


def shipped_log(name: str) -> list[dict[str, Any]]:
    """Return the lines of the training log of an embedded model."""
    return read_log(log_path(name))


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a training log."""
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]


def log_path(name: str) -> Path:
    """Return the file of the training log of an embedded model."""
    return LOGS / f"{name}.log.jsonl.xz"
