"""Level, Verdict, Outcome: how a program was kept in, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How programs are kept in, strongest first. The value is what records hold."""

    BUBBLEWRAP = "bubblewrap"  # own file system, no network, own processes, by bwrap
    NAMESPACES = "namespaces"  # the same by system calls
    PLAIN = "plain"  # a bare child, and only programs that could do nothing anyway: see plain.py
    NONE = "none"  # a bare child with resource limits, Landlock and seccomp, where the kernel has them


class Verdict(Enum):
    """What became of a program."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    REFUSED = "refused"  # not run: more than plain Python, and no sandbox


@dataclass(frozen=True)
class Outcome:
    """The verdict, how the program was kept in, and the end of what it printed or why it stopped."""

    verdict: Verdict
    level: Level
    detail: str
    walls: str = ""  # what else stood around it: Landlock with its version, seccomp, an own key ring

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED
