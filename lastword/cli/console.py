"""Terminal output: progress, Markdown tables, canvases and survival curves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby, pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.markdown import Markdown, TableElement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import lastword

if TYPE_CHECKING:
    from rich.progress import Progress

    from lastword.cli.chat_backends import ServerCanvas

LINE_SECONDS = 10.0  # between two lines of progress if standard error is not a terminal
LINE_SHARE = 0.1  # the same as a share of the elapsed time; the longer of the two applies


@dataclass(frozen=True)
class ProgressStatus:
    """A note and an estimate of the time left, shown as text that counts down until the next update."""

    note: str
    seconds_left: float | None
    since: float = field(default_factory=lambda: monotonic())

    def __str__(self) -> str:
        remaining = ""
        if self.seconds_left is not None:
            waited = monotonic() - self.since
            left = timedelta(seconds=max(0, round(self.seconds_left - waited)))
            quiet = timedelta(seconds=round(waited))
            remaining = f"about {left} left" if left else f"still working, nothing finished for {quiet}"
        return ", ".join(filter(None, (self.note, remaining)))


class ProgressDisplay:
    """The progress of a command: the number of finished items and the estimated time left."""

    def __init__(self, bar: Progress, unit: str) -> None:
        self._bar, self._unit = bar, unit
        self._task = bar.add_task(unit, total=None, status="")

    def update(
        self, done: int, total: int | None = None, *, seconds_left: int | float | None = None, note: str = ""
    ) -> None:
        """Show the number of finished items; without `seconds_left`, the time left is estimated from their rate."""
        count = "" if total is None else f"{done}/{total} "
        self._bar.update(self._task, completed=done, total=total, description=f"{count}{self._unit}")
        left = self._bar.tasks[0].time_remaining if seconds_left is None else seconds_left
        self._bar.update(self._task, status=ProgressStatus(note, None if done == total else left))

    def __str__(self) -> str:
        task = self._bar.tasks[0]
        status = str(task.fields["status"])
        return f"{task.description}, {timedelta(seconds=round(task.elapsed or 0))}" + (f"; {status}" if status else "")


@contextmanager
def progress(unit: str) -> Iterator[ProgressDisplay]:
    """Show progress on standard error during a `with` block; `unit` names the counted items, such as "prompts"."""
    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    console, columns = Console(stderr=True), (BarColumn(12), "{task.description}", TimeElapsedColumn())
    bar = Progress(
        *columns,
        "{task.fields[status]}",
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=float("inf"),
    )
    display, stop = ProgressDisplay(bar, unit), threading.Event()
    printer = threading.Thread(target=print_lines, args=(display, stop), daemon=True)
    with bar:
        if not console.is_terminal:
            printer.start()
        try:
            yield display
        finally:
            stop.set()
            if printer.is_alive():
                printer.join()


def print_lines(display: ProgressDisplay, stop: threading.Event) -> None:
    """Print the progress at growing intervals until `stop` is set; a short command prints nothing."""
    elapsed = 0.0
    while not stop.wait(pause := max(LINE_SECONDS, LINE_SHARE * elapsed)):
        elapsed += pause
        with suppress(OSError, ValueError):  # standard error may be full or closed
            typer.echo(f"lastword: {display}", err=True)


class GroupedTable(TableElement):
    """A Markdown table with rows grouped under equal first cells, and without empty columns."""

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        header = self.header.row.cells if self.header and self.header.row else []
        body = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        used = [column for column in range(len(header)) if any(row[column] for row in body)]
        groups = [[*group] for _, group in groupby(body, lambda row: row[0].plain)]
        is_grouped = len(groups) < len(body) and header[0].justify != "right"
        for number, group in enumerate(groups if is_grouped else [body]):
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
            table.show_header = not number
            if is_grouped:
                yield Text(f"{header[0].content}: {group[0][0]}", style="bold")
            columns = used[1:] if is_grouped else used
            for column in columns:
                width = None
                if header[column].justify == "right":  # numbers are not wrapped
                    width = max(len(part) for row in body for part in row[column].plain.split(", "))
                table.add_column(header[column].content, overflow="fold", min_width=width)
            for row in group:
                table.add_row(*(row[column] for column in columns))
            yield table


def print_markdown(text: str, console: Console | None = None) -> None:
    """Print Markdown: rendered on a terminal, unchanged into a pipe or a file."""
    console = console or Console()
    if not console.is_terminal:
        typer.echo(text)
        return
    markdown: Any = Markdown(text)
    markdown.elements = Markdown.elements | {"table_open": GroupedTable}
    console.print(markdown)


MASK, END = "░", "·"


def canvas_panel(canvas: lastword.Frame | ServerCanvas, title: str) -> Panel:
    """Return a panel that shows a canvas; the tokens that its last forward pass wrote are green."""
    text = Text()
    end = len(canvas.texts) if canvas.end is None else canvas.end
    for slot, (piece, filled_at) in enumerate(zip(canvas.texts, canvas.filled_at)):
        if filled_at is None:
            text.append(MASK, style="bright_black")
        elif slot >= end:
            text.append(END, style="dim red")
        else:
            is_new = filled_at == canvas.forward_passes > 0
            text.append(printable(piece or ""), style="bold green" if is_new else "")
    masks = sum(filled_at is None for filled_at in canvas.filled_at)
    return Panel(
        text,
        title=f"{title} · {len(canvas.texts)} slots",
        subtitle=f"pass {canvas.forward_passes} · {masks} masks left",
    )


def printable(text: str) -> str:
    """Return the text with the characters replaced that would control a terminal; an answer may contain some."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextmanager
def live_canvas(
    model: lastword.MaskPredictor, console: Console, title: str, beside: Sequence[Panel] = (), *, enabled: bool = True
) -> Iterator[Callable[[lastword.Step], None] | None]:
    """Yield an `on_step` callback that draws the canvas, next to the panels `beside` of another run.

    The callback is None if the console is not a terminal or `enabled` is False.
    """
    from rich.live import Live

    from lastword.viz.frames import BatchTrace

    if not (enabled and console.is_terminal):
        yield None
        return
    traces, others = BatchTrace(model.tokenizer, model.ids), iter(beside)
    with Live(console=console, refresh_per_second=20, transient=True) as live:

        def draw(step: lastword.Step) -> None:
            for _, frame in traces.of(step):
                panel = canvas_panel(frame, title)
                pair = [panel, next(others, beside[-1])] if beside else []
                live.update(Columns(pair, width=console.width // 2 - 1) if pair else panel)

        yield draw


BLOCKS, MARK = " ▁▂▃▄▅▆▇█", "│"
ASCII_BLOCKS, ASCII_MARK = " ..::++##", "|"  # if the output supports ASCII only
CURVE_HEIGHT = 8


def draw_curve(lengths: lastword.LengthDistribution, horizon: int, *, console: Console | None = None) -> None:
    """Print one prompt's survival curve and horizon; each terminal column shows the mean of its slots."""
    console = console or Console()
    width = min(lengths.slots, max(20, console.width - 8))
    edges = [round(place * lengths.slots / width) for place in range(width + 1)]
    heights = [lengths.survival[a:b].mean().item() for a, b in pairwise(edges)]
    mark = next(place for place, edge in enumerate(edges[1:]) if horizon <= edge)
    blocks, mark_character = (ASCII_BLOCKS, ASCII_MARK) if console.options.ascii_only else (BLOCKS, MARK)
    for level in reversed(range(CURVE_HEIGHT)):
        line = Text({CURVE_HEIGHT - 1: "S=1 ", 0: "  0 "}.get(level, "    "), style="dim")
        for place, height in enumerate(heights):
            eighths = min(8, max(0, round((height * CURVE_HEIGHT - level) * 8)))
            style = "bold red" if place == mark else "blue" if place < mark else "bright_black"
            empty = mark_character if place == mark else " "
            line.append(blocks[eighths] if eighths else empty, style=style)
        console.print(line, soft_wrap=True)
    console.print(Text("    " + " " * mark + f"^ {horizon}", style="bold red"), soft_wrap=True)
