"""Denoising as it happens: the answer redrawn after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from lastword.decoding.loop import Step
from lastword.models.base import TextTokenizer

MASK = "░"


Watcher = Callable[[Step], None]


@contextmanager
def watching(tokenizer: TextTokenizer | None, console: Console, title: str) -> Iterator[Watcher]:
    """Draws row 0 of every step it is shown."""
    with Live(console=console, refresh_per_second=20, transient=True) as live:
        yield lambda step: live.update(panel(step, tokenizer, title))


@contextmanager
def watching_beside(
    tokenizer: TextTokenizer | None, console: Console, title: str, frames: Sequence[Panel]
) -> Iterator[Watcher]:
    """Draws every step it is shown beside the frame another run had after as many."""
    half = console.width // 2 - 1
    left = iter(frames)
    with Live(console=console, refresh_per_second=20, transient=True) as live:

        def show(step: Step) -> None:
            other = next(left, frames[-1])
            live.update(Columns([panel(step, tokenizer, title), other], width=half))

        yield show


def panel(step: Step, tokenizer: TextTokenizer | None, title: str) -> Panel:
    """Row 0's answer: written tokens, masks, and what came in this pass."""
    canvas = step.canvas
    new = {int(column) - canvas.start for column in step.chosen[0].nonzero()}
    text = Text()
    for slot, token in enumerate(canvas.answer_ids(0)):
        if token == canvas.ids.mask:
            text.append(MASK, style="bright_black")
        elif token in canvas.ids.ends:
            text.append("·", style="dim red")
        else:
            piece = tokenizer.decode([token]) if tokenizer else f"{token} "
            text.append(piece, style="bold green" if slot in new else "")
    left = int(canvas.masked[0].sum())
    passes = int(step.cost.forward_passes[0])
    return Panel(
        text,
        title=f"{title} · {int(canvas.horizon[0])} slots",
        subtitle=f"pass {passes} · {left} masks left",  # half a terminal is too narrow for one line
    )
