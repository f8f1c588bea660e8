"""Pieces of HTML that a notebook shows: they take its colours, light or dark, and load nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

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
