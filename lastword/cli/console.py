"""Progress and Markdown on a terminal or in a pipe."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


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


BAR = re.compile(r"(?<!\\)\|")  # between two cells; one that is part of a cell is escaped
PART = re.compile(r"(?<=,) ")  # several numbers of a cell may stand below each other
LEAST = 12  # letters that a column of words keeps, if it has as many
GAP = 2  # letters between two columns


def print_markdown(text: str, console: Console | None = None) -> None:
    """Print Markdown: into a pipe or a file the text itself, so that a page can be made of it."""
    if console is None:
        if not sys.stdout.isatty():  # where nobody looks, rich need not be there
            typer.echo(text)
            return
        from rich.console import Console

        console = Console()
    if not console.is_terminal:
        typer.echo(text)
        return
    for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if is_table:
            _print_table(list(lines), console)
        else:
            for line in lines:
                console.print(_plain(line), markup=False, highlight=False)


def _print_table(lines: Sequence[str], console: Console) -> None:
    head, align, *rows = map(_cells, lines)
    groups = [[*mine] for _, mine in groupby(rows, lambda row: row[0])]
    grouped = len(groups) < len(rows) and not align[0].endswith(":")
    columns = [
        Column(at, head[at], [row[at] for row in rows], align[at].endswith(":"))
        for at in range(grouped, len(head))
    ]
    columns = [column for column in columns if any(column.cells)]
    shown = _fitting(columns, console.width)
    widths = _widths(shown, console.width)
    for number, mine in enumerate(groups if grouped else [rows]):
        if grouped:  # what rows share is said once, above them
            console.print(f"{head[0]}: {mine[0][0]}", style="bold", markup=False, highlight=False)
        console.print(_table(shown, widths, mine, show_header=not number))
    if len(shown) < len(columns):
        names = ", ".join(column.name for column in columns[len(shown) :])
        note = f"left out to fit: {names}; a wider terminal or a pipe (| cat) has them"
        console.print(note, style="dim", markup=False, highlight=False)


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers stand at the right."""

    at: int  # its index in a row
    name: str
    cells: list[str]
    is_number: bool

    @property
    def least(self) -> int:
        """Letters that it needs: a number stands on one line, words may be broken."""
        head = max(map(len, self.name.split()), default=0)
        if not self.is_number:
            return max(head, min(LEAST, max(map(len, self.cells))))
        return max(head, *(len(part) for cell in self.cells for part in PART.split(cell)))

    @property
    def most(self) -> int:
        """Letters with which nothing is broken but the head."""
        return max(self.least, *map(len, self.cells))


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns without the last ones, as far as those do not fit; the first three always stay."""
    shown = list(columns)
    while len(shown) > 3 and sum(column.least + GAP for column in shown) - GAP > width:
        shown.pop()
    return shown


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Letters of every column: what it needs, and of the rest first the numbers and then the words."""
    widths = [column.least for column in columns]
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    for at, column in sorted(enumerate(columns), key=lambda pair: not pair[1].is_number):
        more = max(min(spare, column.most - column.least), 0)
        widths[at], spare = widths[at] + more, spare - more
    return widths


def _table(
    columns: Sequence[Column],
    widths: Sequence[int],
    rows: Sequence[Sequence[str]],
    *,
    show_header: bool,
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        show_header=show_header,
    )
    for column, letters in zip(columns, widths):
        justify: Literal["right", "left"] = "right" if column.is_number else "left"
        table.add_column(Text(column.name), justify=justify, overflow="fold", width=letters)
    for row in rows:
        table.add_row(*(Text(row[column.at]) for column in columns))
    return table


def _cells(line: str) -> list[str]:
    """The cells of a line, as they were before they were escaped."""
    return [_plain(cell.strip().replace("\\|", "|")) for cell in BAR.split(line.strip())[1:-1]]


def _plain(text: str) -> str:
    """Without the marks of bold type and code."""
    return text.replace("**", "").replace("`", "")
