"""How many threads torch may take in a command: no more than there are cores, few for a small model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lastword.embedded import EMBEDDED

FEW = 1  # for the embedded models: threads wait for one another where others use the cores as well
SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
THREADS = (
    f"Threads: as many as there are cores, {FEW} for the embedded models; OMP_NUM_THREADS says otherwise."
)
UNKNOWN = "?"  # a model that may be large
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds, in so many


def limit_threads(models: Sequence[str | None], environment: dict[str, str] | None = None) -> None:
    """Choose for torch, which reads it when it is imported; what the environment says stands.

    Torch takes a thread for every core that it sees, also in a container that was given two of them, and
    also for tensors that are computed before a thread has woken up.
    """
    variables = os.environ if environment is None else environment
    if any(variables.get(name) for name in SAID):
        return
    small = all(name is None or name in (*EMBEDDED, "toy") for name in models)
    variables[SAID[0]] = str(min(cores(), FEW) if small else cores())


def cores(quota: Path = QUOTA) -> int:
    """The cores this process may use, by its affinity and by its container's share."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        spent, of = quota.read_text().split()
        return max(1, min(seen, -(-int(spent) // int(of))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or no limit ("max")
        return seen
