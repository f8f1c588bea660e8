"""A recipe as HTML: every choice in words and by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from lastword.show.html import SOFT, framed, styled, table

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
