"""A survival curve drawn with block characters."""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console
from rich.text import Text

from lastword.survival.distribution import LengthDistribution

EIGHTHS, MARK = " ▁▂▃▄▅▆▇█", "│"
PLAIN_EIGHTHS, PLAIN_MARK = " ..::++##", "|"  # where the output takes ASCII only
HEIGHT = 8


def draw_curve(lengths: LengthDistribution, horizon: int, *, console: Console | None = None) -> None:
    """Print one prompt's S(k), the horizon marked; each character column averages the slots under it."""
    console = console or Console()
    width = min(lengths.slots, max(20, console.width - 8))
    survival = lengths.survival[:-1]
    edges = [round(place * lengths.slots / width) for place in range(width + 1)]
    heights = [survival[a:b].mean().item() for a, b in pairwise(edges)]
    mark = next(place for place, edge in enumerate(edges[1:]) if horizon <= edge)
    plain = console.options.ascii_only
    eighths_of, empty_mark = (PLAIN_EIGHTHS, PLAIN_MARK) if plain else (EIGHTHS, MARK)
    for level in reversed(range(HEIGHT)):
        label = {HEIGHT - 1: "S=1 ", 0: "  0 "}.get(level, "    ")
        line = Text(label, style="dim")
        for place, height in enumerate(heights):
            eighths = min(8, max(0, round((height * HEIGHT - level) * 8)))
            style = "bold red" if place == mark else "blue" if place < mark else "bright_black"
            empty = empty_mark if place == mark else " "
            line.append(eighths_of[eighths] if eighths else empty, style=style)
        console.print(line, soft_wrap=True)
    pointer = f"^ {horizon}"
    console.print(Text("    " + " " * mark + pointer, style="bold red"), soft_wrap=True)
