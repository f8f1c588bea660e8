"""Replicas: how many there are, what each is given, and who says which takes a request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastword.errors import SettingError
from lastword.serve.ray.report import ROUTINGS
from lastword.validation import check_int, check_number

MOST = 10_000


@dataclass(frozen=True)
class Replicas:
    """What an operator says of replicas; every value can be set on the command line."""

    least: int = 1
    most: int = 1  # more than `least`: as many as the work wants
    cpus: float = 1.0  # of each; logical ones, by which Ray places it
    gpus: float | None = None  # of each; None: one, where the cluster has any
    routing: str = "predicted"
    seconds: float = 10.0  # of predicted work that a replica should have, where their number changes
    up: float = 10.0  # seconds that there must be too few before one is added
    down: float = 120.0  # seconds that there must be too many before one is taken away
    patience: float = 600.0  # seconds in which all must be ready, weights loaded

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            check_int("Replicas", name, getattr(self, name), minimum=1, maximum=MOST)
        if self.most < self.least:
            raise SettingError(
                f"replicas {self.least}:{self.most} were given; the second number is the larger one"
            )
        check_number("Replicas", "cpus", self.cpus, minimum=0)
        if self.gpus is not None:
            check_number("Replicas", "gpus", self.gpus, minimum=0)
        for name in ("seconds", "patience"):
            check_number("Replicas", name, getattr(self, name), above=0)
        for name in ("up", "down"):
            check_number("Replicas", name, getattr(self, name), minimum=0)
        if self.routing not in ROUTINGS:
            raise SettingError(f"routing {self.routing!r} was given; allowed: {', '.join(ROUTINGS)}")

    @property
    def scales(self) -> bool:
        """Does their number follow the work?"""
        return self.most > self.least


def how_many(text: str) -> tuple[int, int]:
    """The least and the most of `2`, or of `1:8`."""
    found = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", text.strip())
    if found is None:
        raise SettingError(
            f"replicas {text!r} were given; write a number (2), or the least and the most (1:8)"
        )
    return int(found[1]), int(found[2] or found[1])
