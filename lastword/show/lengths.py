"""A length distribution as HTML: the survival curve as an inline SVG, with mean and quantiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lastword.show.html import SOFT, framed, styled, table
from lastword.show.style import BLUE, ORANGE

QUANTILES = (0.5, 0.9, 0.95)
MOST_ROWS = 12  # of a batch that are shown
SPENT = 0.002  # what lies behind is not drawn
WIDTH, HEIGHT = 460, 130
SMALL = (120, 28)

Lengths = Any  # a LengthDistribution, which shows itself and so comes later


def lengths_html(lengths: Lengths) -> str:
    """One prompt's curve, large; of several prompts a line each."""
    if lengths.hazard.dim() == 1:
        read = styled(f"read as {lengths.read_as}", SOFT, "div") if lengths.read_as else ""
        return framed(_numbers([lengths], ""), _curve(lengths), read)
    rows = range(min(len(lengths), MOST_ROWS))
    left = len(lengths) - len(rows)
    more = styled(f"and {left} prompts more", SOFT, "div") if left > 0 else ""
    return framed(_numbers([lengths.row(row) for row in rows], "prompt"), more)


def _numbers(rows: Sequence[Lengths], prompt: str) -> str:
    """A line a prompt, with its number and a small curve where there may be several."""
    shares = (f"{q:.0%} within" for q in QUANTILES)
    head = ["expected length", *shares, "longer than the probe"]
    lines = [[*map(str, _told(row))] for row in rows]
    if prompt:
        head = [prompt, "", *head]
        small = ([str(at), _svg(row.survival.tolist(), *SMALL)] for at, row in enumerate(rows))
        lines = [[*drawn, *line] for drawn, line in zip(small, lines)]
    return table(head, lines)


def _told(lengths: Lengths) -> Iterator[str]:
    tail = float(lengths.tail)
    yield f"{lengths.mean:.1f} slots"
    for q in QUANTILES:
        yield str(int(lengths.quantile(q))) if tail <= 1 - q else f"not {lengths.slots}"
    yield f"{tail:.1%}"


def _curve(lengths: Lengths) -> str:
    """The curve with its axes, as far as there is something to see."""
    survival = lengths.survival.tolist()
    last, mean = _last(survival), float(lengths.mean)
    at = WIDTH * mean / last
    side, off = ("start", 5) if at < 0.7 * WIDTH else ("end", -5)
    text = 'fill="currentColor" font-size="12"'
    marks = (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{HEIGHT}" stroke="{ORANGE}" stroke-width="2" '
        f'stroke-dasharray="6 4"/>'
        f'<text x="{at + off:.1f}" y="14" text-anchor="{side}" {text}>mean {mean:.1f}</text>'
    )
    below = HEIGHT + 16
    probed = "slots" if last == lengths.slots else f"of {lengths.slots} slots"
    names = (
        f'<text x="-6" y="10" text-anchor="end" {text}>1</text>'
        f'<text x="-6" y="{HEIGHT}" text-anchor="end" {text}>0</text>'
        f'<text x="0" y="{below}" {text}>0</text>'
        f'<text x="{WIDTH}" y="{below}" text-anchor="end" {text}>{last} {probed}</text>'
    )
    said = styled("Chance that the answer is longer than so many slots:", SOFT, "div")
    return said + _svg(survival, WIDTH, HEIGHT, marks + names, margins=(20, 4, 4, 24))


def _svg(
    survival: Sequence[float],
    width: int,
    height: int,
    marks: str = "",
    margins: tuple[int, int, int, int] = (1, 1, 1, 1),
) -> str:
    """A step for every slot; margins are left, top, right and bottom."""
    left, top, right, bottom = margins
    wide, tall = width + left + right, height + top + bottom
    line = " ".join(_steps(survival[: _last(survival) + 1], width, height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        f'viewBox="{-left} {-top} {wide} {tall}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="survival curve">'
        f'<path d="{line} V{height} H0 Z" fill="{BLUE}" fill-opacity=".2"/>'
        f'<path d="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        f'<path d="M0 0 V{height} H{width}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
        f"{marks}</svg>"
    )


def _steps(survival: Sequence[float], width: int, height: int) -> Iterator[str]:
    """The path; steps that cannot be seen are left out."""
    last, at = len(survival) - 1, 0.0
    yield "M0 0"
    for slot, share in enumerate(survival):
        down = round(height * (1 - share), 1)
        if down != at:
            yield f"H{width * slot / last:.1f} V{down:g}"
            at = down
    yield f"H{width}"


def _last(survival: Iterable[float]) -> int:
    """The last slot that is drawn: a quarter behind the one where nearly nothing is left."""
    survival = list(survival)
    spent = next((slot for slot, share in enumerate(survival) if share < SPENT), len(survival))
    return min(len(survival) - 1, max(8, spent + spent // 4))
