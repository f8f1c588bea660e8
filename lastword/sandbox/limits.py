"""Limits: how much time, memory and disk, how many processes and how large files a program may have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastword.validation import MAX_COUNT, check_int, check_number

LEAST = 1 << 26  # bytes of memory that an interpreter takes to start


@dataclass(frozen=True)
class Limits:
    """Of one program; the processor gets a second more than the wall clock."""

    wall_seconds: int | float = 10.0
    memory_bytes: int = 1 << 30  # of each process
    processes: int = 64
    file_bytes: int = 1 << 20  # of each file, what it prints included
    disk_bytes: int = 1 << 24  # of all files together

    def __post_init__(self) -> None:
        check_number("Limits", "wall_seconds", self.wall_seconds, above=0)
        check_int("Limits", "memory_bytes", self.memory_bytes, minimum=LEAST, maximum=MAX_COUNT)
        for name in ("processes", "file_bytes", "disk_bytes"):
            check_int("Limits", name, getattr(self, name), minimum=1, maximum=MAX_COUNT)

    def resources(self) -> dict[str, int]:
        """As `resource.setrlimit` names them."""
        return {
            "AS": self.memory_bytes,
            "CPU": math.ceil(self.wall_seconds) + 1,
            "FSIZE": self.file_bytes,
            "NOFILE": 64,
            "NPROC": self.processes,
            "CORE": 0,
        }
