"""The page at `/`: one file of the package."""

from __future__ import annotations

from pathlib import Path

from lastword.serve.invalid import NoSuchThing

FILE = Path(__file__).parent / "page.html"


def page() -> str:
    """Its text."""
    if not FILE.is_file():
        raise NoSuchThing("this server has no page")
    return FILE.read_text(encoding="utf-8")
