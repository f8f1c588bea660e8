"""Running: the programs that run now, so that all of them can be ended at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock


class Running:
    """Shared by the threads that run programs."""

    def __init__(self) -> None:
        self._lock, self._children, self.ended = Lock(), set[subprocess.Popen[bytes]](), False

    @contextmanager
    def holding(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """While it lasts, the child can be ended. It does not outlive an exception."""
        with self._lock:
            self._children.add(child)
            if self.ended:
                kill(child)
        try:
            yield
        except BaseException:
            end(child)
            raise
        finally:
            with self._lock:
                self._children.discard(child)

    def end(self) -> None:
        """Kill all that run, and whatever is started from now on."""
        with self._lock:
            self.ended = True
            for child in self._children:
                kill(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and all of its group, and wait for it."""
    kill(child)
    child.communicate()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Its group is its own since it was started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
