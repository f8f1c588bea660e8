"""Write docs/reference/parts.md, every part with its cost and source: `python -m benchmarks.parts`.

It says what `lastword recipes` says, from the same table of names; `--check` only compares.
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

Every choice of a [recipe](recipe.md), by axis: its name on the command line, its settings with their
defaults, what it costs and where it comes from. `python -m benchmarks.parts` writes this page from the code,
a test compares it, and `lastword recipes` prints the same. Which to take is in [Choose](../choose.md).

In text a part is `name:first-setting,setting=value`; one inside another that has settings of its own goes in
brackets: `stop-at-end:(survival:512,interpretation=auto)`. `null` is what the model or the recipe says.
"""
AXES = {
    "length": "How many slots the answer gets: `length=`, `--length`.",
    "unmask": "Which masks a pass fills: `unmask=`, `--unmask`.",
    "commit": "When all that is left is filled at once: `commit=`, `--commit`.",
    "cache": "Which columns are not computed again: `cache=`, `--cache`.",
    "sampling": "How logits become tokens: `sampling=`; `--temperature`, `--top-p`, `--top-k`, `--guidance`.",
    "schedule": "How many masks a pass fills, for rules that rank them: a setting of those rules.",
    "estimate": "One number from a length distribution: a setting of `survival` and others.",
    "interpretation": "Meaning of the end signal: a setting of `survival` and others; `--interpretation`.",
}


def homes() -> dict[str, str]:
    """Return the reference page of each name by its path in the code."""
    return {
        name: page.name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def first_line(thing: Any) -> str:
    """Return the first line of an object's docstring."""
    return (inspect.getdoc(thing) or "").splitlines()[0]


def described(name: str, cls: Any, pages: dict[str, str]) -> str:
    """A part in a line, its name leading to its place in the reference."""
    settings = ", ".join(f"{f.name}={to_text(f.default)}" for f in dataclasses.fields(cls))
    path = f"{cls.__module__}.{cls.__qualname__}"
    also = [f"`{alias}`" for alias in ALIASES.get(name, ())]
    said = first_line(cls) + (f" Also {', '.join(also)}." if also else "")
    said += f"<br>`{settings}`" if settings else ""
    return row(f"[`{name}`]({pages[path]}#{path})", said, cls.cost_summary, cls.source)


def shorthand(name: str, made: Any) -> str:
    """A name for parts put together, in a line."""
    settings = ", ".join(f"{s.name}=null" for s in inspect.signature(made).parameters.values())
    said = f"{first_line(made)} Short for `{to_text(made())}`.<br>`{settings}`"
    return row(f"`{name}`", said, "that of its parts", "ours")


def written() -> str:
    """The page as the code has it."""
    lines = [HEAD, "## recipe\n", "Whole recipes: `recipe=`, `--recipe`.\n"]
    lines += [row("name", "what it is"), "|---|---|"]
    for name, named in RECIPES.items():
        usual = " The default." if name == DEFAULT_RECIPE else ""
        lines.append(row(f"`{name}`", f"{named.description}{usual}<br>`{Recipe.named(name).label()}`"))
    pages = homes()
    for axis, parts in PARTS.items():
        lines += [f"\n## {axis}\n", AXES[axis] + "\n"]
        lines += [row("name", "what it does", "cost", "source"), "|---|---|---|---|"]
        lines += [described(name, cls, pages) for name, cls in parts.items()]
        lines += [shorthand(name, made) for name, made in SHORTHANDS.get(axis, {}).items()]
    return "\n".join(lines) + "\n"


def written_to(page: Path, text: str, words: str) -> None:
    """The command of a page that is written: write it, or with `--check` say that it is another."""
    parser = argparse.ArgumentParser(description=words.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the page differs")
    check = parser.parse_args().check
    stale = not page.exists() or page.read_text(encoding="utf-8") != text
    if stale:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(text, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    written_to(PAGE, written(), __doc__ or "")
