"""HTML representations of results for notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from lastword.viz.figures import BLUE, ORANGE

FRAME = "font:14px/1.5 system-ui,sans-serif;max-width:46em"
INHERIT = "font:inherit;color:inherit"
CELL = "padding:.15em .9em .15em 0;text-align:left;vertical-align:top;border:0;background:none"
SOFT = "opacity:.7"


def framed(*parts: str) -> str:
    """What one object shows."""
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def styled(text: object, style: str, element: str = "span", **attributes: object) -> str:
    """Any text as an element: whatever it holds, it is text."""
    told = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
    return f'<{element} style="{style}"{told}>{escape(str(text))}</{element}>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the head is text, and cells are HTML."""
    titles = "".join(styled(title, f"{CELL};{SOFT};font-weight:400", "th") for title in head)
    cell = f'<td style="{CELL}">'
    lines = "".join(f"<tr>{''.join(f'{cell}{own}</td>' for own in row)}</tr>" for row in rows)
    style = f"{INHERIT};border-collapse:collapse;border:0;margin:.3em 0"
    return f'<table style="{style}"><tr>{titles}</tr>{lines}</table>'


QUANTILES = (0.5, 0.9, 0.95)
MOST_ROWS = 12  # of a batch that are shown
SPENT = 0.002  # what lies behind is not drawn
WIDTH, HEIGHT = 460, 130
SMALL = (120, 28)

Lengths = Any  # a LengthDistribution, which shows itself and so comes later


def lengths_html(lengths: Lengths) -> str:
    """One prompt's curve, large; of several prompts a line each."""
    if lengths.hazard.dim() == 1:
        read = styled(f"read as {lengths.explanation}", SOFT, "div") if lengths.explanation else ""
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


FIRST, LAST = 0.6, 0.06  # how strong the colour of the first and of the last pass is
TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;margin:.4em 0"
LETTERS = 40  # of the text, where an answer is one line
TOKEN = "background:rgba(0,114,178,{:.2f});border-radius:3px"  # the style's blue


def answer_html(
    told: Mapping[str, Any],
    finish: str,
    slots: int,
    pieces: Sequence[tuple[str, int | None]] | None,
) -> str:
    """What a Generation tells of itself (`to_data`), and of each token its text and its pass, if known."""
    if pieces is None:
        shown = told["text"]
        text = " ".join(map(str, told["tokens"])) if shown is None else shown
        return framed(styled(text, TEXT, "div"), _ledger(told, slots), _finish(finish))
    most = max((fixed or 0 for _, fixed in pieces), default=0)
    tokens = "".join(
        styled(text, TOKEN.format(_strength(fixed, most)), title=_when(fixed)) for text, fixed in pieces
    )
    return framed(f'<div style="{TEXT}">{tokens}</div>', _legend(most), _ledger(told, slots), _finish(finish))


def _strength(fixed: int | None, most: int) -> float:
    """Stronger the earlier; what was given before the first pass has no colour."""
    if not fixed:
        return 0.0
    return FIRST - (FIRST - LAST) * (fixed - 1) / max(1, most - 1)


def _when(fixed: int | None) -> str:
    return "a mask" if fixed is None else f"fixed by pass {fixed}" if fixed else "given"


def _legend(most: int) -> str:
    if most < 2:
        return ""
    ends = ((1, "pass 1"), (most, f"pass {most}"))
    first, last = (styled(f" {text} ", TOKEN.format(_strength(at, most))) for at, text in ends)
    return f'<div style="font-size:12px">{first} {styled("to", SOFT)} {last}</div>'


def _ledger(told: Mapping[str, Any], slots: int) -> str:
    """What it cost; a probe of a length policy is a pass as well."""
    cost, probe, tokens = told["cost"], told["probe_cost"], len(told["tokens"])
    passes = cost["forward_passes"] + probe["forward_passes"]
    grown = "" if slots == told["horizon"] else f", then {slots}"
    expected = told["expected_length"]
    cells = {
        "expected length": "" if expected is None else f"{expected:.1f}",
        "canvas": f"{told['horizon']} slots{grown}",
        "tokens": f"{tokens:,}",
        "passes": _with_probe(cost["forward_passes"], probe["forward_passes"]),
        "columns": _with_probe(cost["tokens_computed"], probe["tokens_computed"]),
        "tokens per forward": f"{tokens / passes:.2f}" if passes else "",
        "seconds": f"{told['seconds']:.2f}",
    }
    kept = {name: cell for name, cell in cells.items() if cell}
    return table([*kept], [[*kept.values()]])


def _with_probe(own: int, probe: int) -> str:
    return f"{own:,} + {probe:,} to probe" if probe else f"{own:,}"


def _finish(finish: str) -> str:
    return styled(finish, SOFT, "div")


def answer_line(told: Mapping[str, Any]) -> str:
    """The same in one line, with the first letters of the text."""
    text = " ".join(map(str, told["tokens"])) if told["text"] is None else told["text"]
    text = " ".join(text.split())
    shown = text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
    passes = told["cost"]["forward_passes"] + told["probe_cost"]["forward_passes"]
    return f"{shown!r}, {len(told['tokens'])} tokens, {passes} passes, {told['finish']}"


CODE = "font-family:ui-monospace,monospace;overflow-wrap:anywhere"


def recipe_html(parts: Mapping[str, tuple[str, object]], block: int | None) -> str:
    """By axis, the name and the part of a choice; a part that holds others has a line for each."""
    lines = {axis: (name, [*_said(part)]) for axis, (name, part) in parts.items()}
    whole = "The whole answer is one block, or 32 slots are where a part works by block."
    lines["block"] = ("", [whole]) if block is None else (str(block), ["Slots that are a block."])
    rows = (
        [
            styled(axis, SOFT),
            styled(name, CODE),
            "".join(styled(sentence, "", "div") for sentence in said),
        ]
        for axis, (name, said) in lines.items()
    )
    return framed(table(["choice", "by name", "in words"], rows))


def _said(part: object) -> Iterator[str]:
    """The first line of a part's docstring, then those of the parts in it."""
    first = (inspect.getdoc(type(part)) or "").split("\n")[0]
    yield f"{type(part).__name__}: {first}".rstrip(": ")
    for field in fields(part) if is_dataclass(part) else ():
        inner = getattr(part, field.name)
        if is_dataclass(inner):
            yield from _said(inner)
