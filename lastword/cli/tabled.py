"""Markdown with tables, printed: as it is into a pipe, as tables that fit onto a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
