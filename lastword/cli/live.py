"""Denoising as it happens: the answer redrawn after every pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from lastword.decoding import Step

MASK = "░"


def watch(steps: Iterable[Step], tokenizer: Any, console: Console, title: str) -> Iterator[Step]:
    """Pass the steps through, drawing row 0 of each."""
    with Live(console=console, refresh_per_second=20, transient=True) as live:
        for step in steps:
            live.update(panel(step, tokenizer, title))
            yield step


def kept(steps: Iterable[Step], tokenizer: Any, title: str, frames: list[Panel]) -> Iterator[Step]:
    """Pass the steps through and keep a picture of each, to be shown beside another run."""
    for step in steps:
        frames.append(panel(step, tokenizer, title))
        yield step


def beside(
    steps: Iterable[Step], tokenizer: Any, title: str, frames: list[Panel], console: Console
) -> Iterator[Step]:
    """Pass the steps through, drawing each beside the kept frame of the same pass."""
    half = console.width // 2 - 1
    with Live(console=console, refresh_per_second=20, transient=True) as live:
        for place, step in enumerate(steps):
            other = frames[min(place, len(frames) - 1)]
            live.update(Columns([panel(step, tokenizer, title), other], width=half))
            yield step


def panel(step: Step, tokenizer: Any, title: str) -> Panel:
    """Row 0's answer: written tokens, masks, and what came in this pass."""
    canvas = step.canvas
    new = {int(column) - canvas.start for column in step.chosen[0].nonzero()}
    text = Text()
    for place, token in enumerate(canvas.answer_of(0)):
        if token == canvas.ids.mask:
            text.append(MASK, style="bright_black")
        elif token in canvas.ids.ends:
            text.append("·", style="dim red")
        else:
            piece = tokenizer.decode([token]) if tokenizer else f"{token} "
            text.append(piece, style="bold green" if place in new else "")
    left = int(canvas.masked[0].sum())
    passes = int(step.cost.passes[0])
    return Panel(
        text, title=f"{title} · canvas {int(canvas.horizon[0])} · pass {passes} · {left} masks left"
    )
