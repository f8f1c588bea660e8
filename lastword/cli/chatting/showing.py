"""Showing an answer: redrawn after every pass on a terminal, else as text that is added to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from lastword.cli.chatting.heard import Added, Drawn, Ended, Heard

MASK, END = "░", "·"
REDRAWN = 0.05  # seconds between two drawings
ENDINGS = {"cap": "cut by --max-tokens", "canvas": "cut: the canvas was full"}


def show(heard: Iterator[Heard], console: Console, title: str) -> Ended:
    """Show an answer while it is made; give it back whole."""
    ended = _redrawn(heard, console, title) if console.is_terminal else _added(heard)
    if line := ledger(ended):
        note(line)
    return ended


def ledger(ended: Ended) -> str:
    """In one line: what was predicted, what was written, what it took."""
    told = ended.ledger
    if told is None:
        return ""
    predicted = "no length" if told.predicted_length is None else f"{told.predicted_length:.0f}"
    written = "" if ended.tokens is None else f", wrote {ended.tokens}"
    queued = f" after {told.seconds_queued:.2f} s in the queue" if told.seconds_queued else ""
    cut = f"; {ENDINGS[told.ended_by]}" if told.ended_by in ENDINGS else ""
    return (
        f"[predicted {predicted}{written} tokens; {told.forward_passes} passes, {told.tokens_computed} "
        "columns, "
        f"{told.tokens_per_forward:.2f} tokens per forward; {told.seconds_decoding:.2f} s{queued}{cut}]"
    )


def note(sentence: str) -> None:
    """A line beside the answers: on standard error, so that a pipe has the answers alone."""
    typer.echo(printable(sentence), err=True)


def printable(text: str) -> str:
    """Without what would steer a terminal: a model may write anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def panel(drawn: Drawn, title: str) -> Panel:
    """The canvas: written tokens, masks, ends, and in green what came in this pass."""
    text = Text()
    ends = len(drawn.texts) if drawn.end is None else drawn.end
    for slot, (piece, fixed) in enumerate(zip(drawn.texts, drawn.fixed)):
        if piece is None:
            text.append(MASK, style="bright_black")
        elif slot >= ends:
            text.append(END, style="dim red")
        else:
            new = fixed == drawn.passes and drawn.passes > 0
            text.append(printable(piece), style="bold green" if new else "")
    left = sum(piece is None for piece in drawn.texts)
    told = f"canvas {len(drawn.texts)} · pass {drawn.passes} · {left} masks left"
    return Panel(text, title=f"{title} · {told}")


def _redrawn(heard: Iterator[Heard], console: Console, title: str) -> Ended:
    ended, due = Ended(""), 0.0
    # Drawn by this thread alone, so that Ctrl-C stops nothing half way that another one waits for.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for event in heard:
            if isinstance(event, Drawn):
                if (now := time.monotonic()) >= due:
                    live.update(panel(event, title), refresh=True)
                    due = now + REDRAWN
            elif isinstance(event, Ended):
                ended = event
    console.print(Text(printable(ended.text)))
    return ended


def _added(heard: Iterator[Heard]) -> Ended:
    ended, open_line = Ended(""), False
    try:
        for event in heard:
            if isinstance(event, Added):
                open_line = True
                typer.echo(event.text, nl=False)
            elif isinstance(event, Ended):
                ended, open_line = event, True  # an answer without text is a line as well
    finally:
        if open_line:  # also where it was stopped
            typer.echo()
    return ended
