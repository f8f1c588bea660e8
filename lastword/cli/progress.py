"""How far a command is, on standard error: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

EVERY = 10.0  # seconds between two lines, where there is no terminal
SHARE = 0.1  # or as much of the time that has passed: a long run has no more lines than a page


class Showing:
    """What is known of a command's progress: whoever works tells it, a bar or a line shows it."""

    def __init__(self, what: str, now: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.done, self.total, self.note = 0, None, ""  # type: int, int | None, str
        self._now, self._began = now, now()
        self._first: int | None = None  # done when it was told first: by earlier runs
        self._left: float | None = None
        self._told = self._began

    def __call__(
        self,
        done: int,
        total: int | None = None,
        left: float | None = None,
        note: str = "",
        what: str | None = None,
    ) -> None:
        """So much is done; without seconds that are `left`, they are taken from the pace so far."""
        self.done, self.total, self.note = done, total, note
        self.what = what or self.what
        self._first = done if self._first is None else min(self._first, done)
        self._told = self._now()
        self._left = self._by_pace() if left is None else left

    def count(self, done: int, total: int) -> None:
        """So much is done, and no more is known."""
        self(done, total)

    def waiting(self, left: int, seconds: float | None) -> None:
        """So many of the total are left, which will take so long."""
        total = max(self.total or 0, left)
        self(total - left, total, seconds)

    def _by_pace(self) -> float | None:
        if self.done == self.total:
            return 0.0
        new = self.done - (self._first or 0)
        if not new or self.total is None:
            return None
        return self.elapsed / new * (self.total - self.done)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._now() - self._began

    @property
    def rest(self) -> str:
        """What there is to say besides a number, and how long it will take."""
        if self.total is None:
            return self.note
        left = "no estimate yet"
        if self._left is not None:
            left = f"about {spoken(max(self._left - (self._now() - self._told), 0.0))} left"
        return ", ".join(filter(None, (self.note, left)))

    def __str__(self) -> str:
        """All of it in a line."""
        count = "" if self.total is None else f"{self.done} of {self.total} "
        rest = f"; {self.rest}" if self.rest else ""
        return f"{count}{self.what}, {spoken(self.elapsed)}{rest}"


def spoken(seconds: float) -> str:
    """A time as people say it."""
    whole = int(seconds + 0.5)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def progress(what: str) -> Iterator[Showing]:
    """Show the progress of what happens inside; `what` names what is counted."""
    from rich.console import Console

    console, shown = Console(stderr=True), Showing(what)
    with _bar(shown, console) if console.is_terminal else _lines(shown):
        yield shown


@contextmanager
def _bar(shown: Showing, console: Any) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Told(ProgressColumn):
        """What is known now, which may be more than when it was told."""

        def __init__(self, tell: Callable[[], str]) -> None:
            super().__init__()
            self._tell = tell

        def render(self, task: Task) -> Text:
            bar.update(task.id, completed=shown.done, total=shown.total)
            return Text(self._tell(), no_wrap=True, overflow="ellipsis")

    def count() -> str:
        return shown.what if shown.total is None else f"{shown.done}/{shown.total} {shown.what}"

    columns = (
        BarColumn(12),
        Told(count),
        Told(lambda: shown.rest or spoken(shown.elapsed)),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task("", total=None)
        yield


@contextmanager
def _lines(shown: Showing) -> Iterator[None]:
    stop = threading.Event()
    teller = threading.Thread(target=tell, args=(shown, stop), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()


def tell(shown: Showing, stop: threading.Event) -> None:
    """Say where it stands, every so often, until it stops; nothing of a run that is shorter."""
    while not stop.wait(max(EVERY, SHARE * shown.elapsed)):
        with suppress(OSError, ValueError):  # a standard error that is full or closed
            typer.echo(f"lastword: {shown}", err=True)
