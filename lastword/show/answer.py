"""An answer as HTML: its tokens by the pass that fixed them, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastword.show.html import SOFT, framed, styled, table

FIRST, LAST = 0.6, 0.06  # how strong the colour of the first and of the last pass is
TEXT = (
    "white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;margin:.4em 0"
)
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
        styled(text, TOKEN.format(_strength(fixed, most)), title=_when(fixed))
        for text, fixed in pieces
    )
    return framed(
        f'<div style="{TEXT}">{tokens}</div>', _legend(most), _ledger(told, slots), _finish(finish)
    )


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
    passes = cost["passes"] + probe["passes"]
    grown = "" if slots == told["horizon"] else f", then {slots}"
    expected = told["expected_length"]
    cells = {
        "expected length": "" if expected is None else f"{expected:.1f}",
        "canvas": f"{told['horizon']} slots{grown}",
        "tokens": f"{tokens:,}",
        "passes": _with_probe(cost["passes"], probe["passes"]),
        "columns": _with_probe(cost["columns"], probe["columns"]),
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
    passes = told["cost"]["passes"] + told["probe_cost"]["passes"]
    return f"{shown!r}, {len(told['tokens'])} tokens, {passes} passes, {told['finish']}"
