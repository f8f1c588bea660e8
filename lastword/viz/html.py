"""HTML representations of results for notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from html import escape
from typing import Any

from lastword.viz.figures import BLUE, ORANGE

FRAME = "font:14px/1.5 system-ui,sans-serif;max-width:46em"
INHERIT = "font:inherit;color:inherit"
CELL = "padding:.15em .9em .15em 0;text-align:left;vertical-align:top;border:0;background:none"
SOFT = "opacity:.7"
CODE = "font-family:ui-monospace,monospace;overflow-wrap:anywhere"
TEXT = f"white-space:pre-wrap;{CODE};margin:.4em 0"
TOKEN = "background:rgba(0,114,178,{:.2f});border-radius:3px"  # BLUE
FIRST_OPACITY, LAST_OPACITY = 0.6, 0.06  # background of tokens that the first and the last pass filled
QUANTILES = (0.5, 0.9, 0.95)
MAX_ROWS = 12  # shown rows of a batch
MAX_TEXT = 40  # characters of an answer on one line
NEGLIGIBLE = 0.002  # survival below which the curve is cut
CURVE_SIZE, SMALL_SIZE = (460, 130), (120, 28)

Lengths = Any  # a LengthDistribution, whose module imports this one


def framed(*parts: str) -> str:
    """Return HTML parts in a `div` that sets font and width."""
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def styled(text: object, style: str, element: str = "span", **attributes: object) -> str:
    """Return an HTML element that contains the escaped text."""
    others = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
    return f'<{element} style="{style}"{others}>{escape(str(text))}</{element}>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; the header is text and is escaped, the cells are HTML already."""
    titles = "".join(styled(title, f"{CELL};{SOFT};font-weight:400", "th") for title in header)
    start = f'<td style="{CELL}">'
    lines = "".join(f"<tr>{''.join(f'{start}{cell}</td>' for cell in row)}</tr>" for row in rows)
    style = f"{INHERIT};border-collapse:collapse;border:0;margin:.3em 0"
    return f'<table style="{style}"><tr>{titles}</tr>{lines}</table>'


def lengths_html(lengths: Lengths) -> str:
    """Return one prompt's survival curve and quantiles, or for a batch a table with a small curve per prompt."""
    header = ["expected length", *(f"{q:.0%} within" for q in QUANTILES), "longer than the probe"]
    if lengths.hazard.dim() == 1:
        reason = styled(f"read as {lengths.explanation}", SOFT, "div") if lengths.explanation else ""
        return framed(table(header, [[*_numbers(lengths)]]), _curve(lengths), reason)
    rows = [lengths.row(row) for row in range(min(len(lengths), MAX_ROWS))]
    lines = [[str(number), _svg(row.survival.tolist(), SMALL_SIZE), *_numbers(row)] for number, row in enumerate(rows)]
    hidden = len(lengths) - len(rows)
    more = styled(f"and {hidden} prompts more", SOFT, "div") if hidden else ""
    return framed(table(["prompt", "", *header], lines), more)


def _numbers(lengths: Lengths) -> Iterator[str]:
    tail = float(lengths.tail)
    yield f"{lengths.mean:.1f} slots"
    for q in QUANTILES:
        yield str(int(lengths.quantile(q))) if tail <= 1 - q else f"not {lengths.slots}"
    yield f"{tail:.1%}"


def _curve(lengths: Lengths) -> str:
    """Return a survival curve with axes and mean, cut where survival is negligible."""
    survival, mean, (width, height) = lengths.survival.tolist(), float(lengths.mean), CURVE_SIZE
    last = _last_slot(survival)
    x = width * mean / last
    anchor, offset = ("start", 5) if x < 0.7 * width else ("end", -5)
    text = 'fill="currentColor" font-size="12"'
    probed = "slots" if last == lengths.slots else f"of {lengths.slots} slots"
    marks = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="{ORANGE}" stroke-width="2" '
        f'stroke-dasharray="6 4"/>'
        f'<text x="{x + offset:.1f}" y="14" text-anchor="{anchor}" {text}>mean {mean:.1f}</text>'
        f'<text x="-6" y="10" text-anchor="end" {text}>1</text>'
        f'<text x="-6" y="{height}" text-anchor="end" {text}>0</text>'
        f'<text x="0" y="{height + 16}" {text}>0</text>'
        f'<text x="{width}" y="{height + 16}" text-anchor="end" {text}>{last} {probed}</text>'
    )
    caption = styled("Probability that the answer is longer than this number of slots:", SOFT, "div")
    return caption + _svg(survival, CURVE_SIZE, marks, margins=(20, 4, 4, 24))


def _svg(
    survival: Sequence[float], size: tuple[int, int], marks: str = "", margins: tuple[int, int, int, int] = (1, 1, 1, 1)
) -> str:
    """Return a survival curve as SVG; `marks` is SVG drawn over it, margins are left, top, right and bottom."""
    (width, height), (left, top, right, bottom) = size, margins
    total_width, total_height = width + left + right, height + top + bottom
    line = " ".join(_path(survival[: _last_slot(survival) + 1], width, height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{total_height}" '
        f'viewBox="{-left} {-top} {total_width} {total_height}" style="max-width:100%;height:auto" '
        f'role="img" aria-label="survival curve">'
        f'<path d="{line} V{height} H0 Z" fill="{BLUE}" fill-opacity=".2"/>'
        f'<path d="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        f'<path d="M0 0 V{height} H{width}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'
        f"{marks}</svg>"
    )


def _path(survival: Sequence[float], width: int, height: int) -> Iterator[str]:
    """Yield the commands of a curve's SVG path, without steps too small to be visible."""
    last, y = len(survival) - 1, 0.0
    yield "M0 0"
    for slot, value in enumerate(survival):
        new_y = round(height * (1 - value), 1)
        if new_y != y:
            yield f"H{width * slot / last:.1f} V{new_y:g}"
            y = new_y
    yield f"H{width}"


def _last_slot(survival: Sequence[float]) -> int:
    """Return the last slot to draw: a quarter more than the first slot with negligible survival."""
    negligible = next((slot for slot, value in enumerate(survival) if value < NEGLIGIBLE), len(survival))
    return min(len(survival) - 1, max(8, negligible + negligible // 4))


def answer_html(
    data: Mapping[str, Any], finish: str, slots: int, pieces: Sequence[tuple[str, int | None]] | None
) -> str:
    """Return an answer with its costs; `data` is `Generation.to_data()`, `pieces` is None or (text, pass) per token."""
    costs = _costs(data, slots) + styled(finish, SOFT, "div")
    if pieces is None:
        return framed(styled(_answer_text(data), TEXT, "div"), costs)
    last_pass = max((filled_at or 0 for _, filled_at in pieces), default=0)

    def token(text: str, filled_at: int | None, **attributes: str) -> str:
        opacity = 0.0  # a token that was given has no colour
        if filled_at:
            fraction = (filled_at - 1) / max(1, last_pass - 1)
            opacity = FIRST_OPACITY - (FIRST_OPACITY - LAST_OPACITY) * fraction
        return styled(text, TOKEN.format(opacity), **attributes)

    def tooltip(filled_at: int | None) -> str:
        return "a mask" if filled_at is None else f"filled by pass {filled_at}" if filled_at else "given"

    tokens = "".join(token(text, filled_at, title=tooltip(filled_at)) for text, filled_at in pieces)
    legend = ""
    if last_pass > 1:
        first, last = (token(f" pass {number} ", number) for number in (1, last_pass))
        legend = f'<div style="font-size:12px">{first} {styled("to", SOFT)} {last}</div>'
    return framed(f'<div style="{TEXT}">{tokens}</div>', legend, costs)


def _answer_text(data: Mapping[str, Any]) -> str:
    return " ".join(map(str, data["tokens"])) if data["text"] is None else str(data["text"])


def _costs(data: Mapping[str, Any], slots: int) -> str:
    """Return a table of the costs of an answer."""
    cost, probe, tokens = data["cost"], data["probe_cost"], len(data["tokens"])
    passes = cost["forward_passes"] + probe["forward_passes"]

    def with_probe(name: str) -> str:
        return f"{cost[name]:,} + {probe[name]:,} to probe" if probe[name] else f"{cost[name]:,}"

    cells = {
        "expected length": "" if data["expected_length"] is None else f"{data['expected_length']:.1f}",
        "canvas": f"{data['horizon']} slots" + ("" if slots == data["horizon"] else f", then {slots}"),
        "tokens": f"{tokens:,}",
        "passes": with_probe("forward_passes"),
        "columns": with_probe("tokens_computed"),
        "tokens per forward": f"{tokens / passes:.2f}" if passes else "",
        "seconds": f"{data['seconds']:.2f}",
    }
    cells = {name: cell for name, cell in cells.items() if cell}
    return table([*cells], [[*cells.values()]])


def answer_line(data: Mapping[str, Any]) -> str:
    """Return one line with the beginning of an answer and its costs."""
    text = " ".join(_answer_text(data).split())
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT - 3]}..."
    passes = data["cost"]["forward_passes"] + data["probe_cost"]["forward_passes"]
    return f"{text!r}, {len(data['tokens'])} tokens, {passes} passes, {data['finish']}"


def recipe_html(parts: Mapping[str, tuple[str, object]], block: int | None) -> str:
    """Return a table of a recipe's parts; `parts` maps each choice (length, unmask ...) to a name and a part."""
    lines = {axis: (name, [*_descriptions(part)]) for axis, (name, part) in parts.items()}
    default = "The whole answer is one block, or blocks have 32 slots if a part needs them."
    lines["block"] = ("", [default]) if block is None else (str(block), ["Slots per block."])
    rows = [
        [styled(axis, SOFT), styled(name, CODE), "".join(styled(text, "", "div") for text in texts)]
        for axis, (name, texts) in lines.items()
    ]
    return framed(table(["choice", "by name", "in words"], rows))


def _descriptions(part: object) -> Iterator[str]:
    """Yield the class and first docstring line of a part, then the same of the parts in its fields."""
    first = (inspect.getdoc(type(part)) or "").split("\n")[0]
    yield f"{type(part).__name__}: {first}".rstrip(": ")
    for inner in vars(part).values() if is_dataclass(part) else ():
        if is_dataclass(inner):
            yield from _descriptions(inner)
