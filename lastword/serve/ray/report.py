"""Report: what a replica says of its work, and whom a request is handed to by it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

ROUTINGS = ("predicted", "random")

Id = TypeVar("Id")


@dataclass(frozen=True)
class Report:
    """Predicted work of a replica, as it said a moment ago. Nothing is known of one that said nothing yet."""

    columns: float = 0.0  # that answers with a slot and those that wait are predicted to take yet
    each: float = 0.0  # of them by request
    asking: int = 0  # requests in hand
    working: int = 0  # answers that have a slot
    waiting: int = 0  # answers that have none
    seconds: float = 0.0  # that all of it is predicted to take

    def to_data(self) -> dict[str, Any]:
        """As plain data, which Ray carries."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """From what Ray carried; empty: the replica said nothing yet."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def predicted(report: Report, in_hand: int, usual: float) -> float:
    """Columns before a replica that was handed so many requests which are not answered.

    Those that its report does not count yet are taken to be as long as its others, or as `usual`.
    """
    return report.columns + max(0, in_hand - report.asking) * (report.each or usual)


def least_of_two(work: Mapping[Id, float], draw: random.Random) -> Id:
    """Of two replicas drawn at random the one with less work: power of two choices.

    The least of all would send everything that comes between two reports to the same one.
    """
    drawn = draw.sample(list(work), min(2, len(work)))
    return min(drawn, key=lambda own: work[own])


def usual(reports: Sequence[Report]) -> float:
    """Columns that a request is taken to need where nothing is known of it."""
    known = [report.each for report in reports if report.each]
    return sum(known) / len(known) if known else 1.0
