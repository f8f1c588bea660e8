"""Write docs/map.md, every module in a line: `python -m benchmarks.map`; `--check` only compares.

A module's line is the first of its docstring; a folder's is that of its `__init__.py`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "map.md"
PACKAGES = ("lastword", "benchmarks", "training")
HEAD = """# Map

Every module in a line, from its docstring: `python -m benchmarks.map` writes this page, a test compares it.
What a word means is in [words](words.md), and the way of a prompt through the files in [walk](walk.md).
"""


def first_line(module: Path) -> str:
    """What a module says of itself; one that says nothing is an error."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(
            f"{module.relative_to(ROOT)} has no docstring; say in its first line what it is"
        )
    return docstring.splitlines()[0]


def folders() -> Iterator[Path]:
    """Every folder of Python modules, a package before what it holds."""
    for package in PACKAGES:
        for init in sorted((ROOT / package).rglob("__init__.py")):
            yield init.parent


def written() -> str:
    """The page as the docstrings have it."""
    lines = [HEAD]
    for folder in folders():
        lines += [f"## {folder.relative_to(ROOT)}/\n", first_line(folder / "__init__.py") + "\n"]
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        lines += [f"- `{module.name}`: {first_line(module)}" for module in modules]
        lines += [""] if modules else []
    return "\n".join(lines).rstrip() + "\n"


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
