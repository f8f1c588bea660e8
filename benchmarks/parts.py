"""Write docs/reference/parts.md, the tables of all recipes and parts: `python -m benchmarks.parts`.

The text comes from the classes of the parts, as in `lastword recipes`. `--check` only compares.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import ALIASES, DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
from lastword.recipe.text import to_text

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "parts.md"
HEAD = """# Parts

All recipes and parts by name, with their settings, defaults, cost and source, as `lastword recipes` prints them.
[Choose](../choose.md) recommends parts.

A part is written `name:first-setting,setting=value`, with brackets around a part inside another part:
`stop-at-end:(survival:512,interpretation=auto)`. The model supplies values that are `null`.
`python -m benchmarks.parts` writes this page.
"""
AXES = {
    "length": "The number of slots of an answer: `length=`, `--length`.",
    "unmask": "The masks that a forward pass fills: `unmask=`, `--unmask`.",
    "commit": "When to fill all remaining masks at once: `commit=`, `--commit`.",
    "cache": "The columns that are not computed again: `cache=`, `--cache`.",
    "sampling": "How logits become tokens: `sampling=`; `--temperature`, `--top-p`, `--top-k`, `--guidance`.",
    "schedule": "How many masks a forward pass fills: a setting of rules that rank masks.",
    "estimate": "The number of slots for a length distribution: a setting of `survival`.",
    "interpretation": "The meaning of the end signal: a setting of `survival`; `--interpretation`.",
}


def reference_pages() -> dict[str, str]:
    """Return the reference page of each class by its path in the code."""
    return {
        name: page.name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


def row(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def first_line(documented: Any) -> str:
    """Return the first line of an object's docstring."""
    return (inspect.getdoc(documented) or "").splitlines()[0]


def part_cells(name: str, cls: Any, pages: dict[str, str]) -> list[str]:
    """Return the cells of a part: its name, linked to its class, what it does, its cost and its source."""
    settings = ", ".join(f"{field.name}={to_text(field.default)}" for field in dataclasses.fields(cls))
    path = f"{cls.__module__}.{cls.__qualname__}"
    aliases = ", ".join(f"`{alias}`" for alias in ALIASES.get(name, ()))
    text = first_line(cls) + (f" Elsewhere {aliases}." if aliases else "")
    text += f"<br>`{settings}`" if settings else ""
    return [f"[`{name}`]({pages[path]}#{path})", text, cls.cost_summary, cls.source]


def shorthand_cells(name: str, function: Any) -> list[str]:
    """Return the cells of a name that stands for several parts."""
    settings = ", ".join(f"{parameter}=null" for parameter in inspect.signature(function).parameters)
    return [f"`{name}`", f"Short for `{to_text(function())}`.<br>`{settings}`", "that of its parts", "ours"]


def part_table(axis: str, pages: dict[str, str]) -> list[str]:
    """Return the lines of the table of an axis; a cost that all parts have in common is stated above it."""
    cells = [part_cells(name, cls, pages) for name, cls in PARTS[axis].items()]
    cells += [shorthand_cells(name, function) for name, function in SHORTHANDS.get(axis, {}).items()]
    head, text = ["name", "what it does", "cost", "source"], AXES[axis]
    costs = {cost for _, _, cost, _ in cells}
    if len(costs) == 1 < len(cells):
        text += f" Cost: {costs.pop()}."
        cells, head = [[*line[:2], line[3]] for line in cells], [*head[:2], head[3]]
    return [f"\n## {axis}\n", text + "\n", row(*head), "|---" * len(head) + "|", *(row(*line) for line in cells)]


def written() -> str:
    """Return the text of the page."""
    lines = [HEAD, "## recipe\n", "`recipe=`, `--recipe`.\n", row("name", "what it is"), "|---|---|"]
    for name, recipe in RECIPES.items():
        default = " The default." if name == DEFAULT_RECIPE else ""
        lines.append(row(f"`{name}`", f"{recipe.description}{default}<br>`{Recipe.named(name).label()}`"))
    pages = reference_pages()
    for axis in PARTS:
        lines += part_table(axis, pages)
    return "\n".join(lines) + "\n"


def write_page(page: Path, text: str) -> None:
    """Write a page and print its name if its text differs; with `--check`, print it and exit with status 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if the page differs")
    check = parser.parse_args().check
    is_stale = not page.exists() or page.read_text(encoding="utf-8") != text
    if is_stale:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(text, encoding="utf-8")
    sys.exit(1 if check and is_stale else 0)


if __name__ == "__main__":
    write_page(PAGE, written())
