"""Hooks of mkdocs: which pages stand in the navigation, and what of a page is for GitHub alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!-- .* -->\n", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the navigation says `folder/*.md`."""
    config.nav = expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A page without comments for commands and tests, and without links to files the site lacks."""
    source = Path(config.docs_dir) / page.file.src_uri
    return inside(COMMENT.sub("", markdown), source, Path(config.docs_dir))


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation with every pattern replaced by its pages, in reading order.

    The order is that in which the folder's index.md links to them, then by name. A page that has a place of
    its own is left out of patterns, and a pattern that matches nothing leaves nothing.
    """
    placed = set(_paths(nav))

    def pages(pattern: str) -> list[str]:
        found = {path.relative_to(docs).as_posix() for path in docs.glob(pattern)} - placed
        placed.update(found)
        index = docs / Path(pattern).parent / "index.md"
        text = index.read_text(encoding="utf-8") if index.exists() else ""
        linked = [(Path(pattern).parent / name).as_posix() for name in _links(text)]
        first = [f"{Path(pattern).parent.as_posix()}/index.md", *linked]
        ordered = [name for name in dict.fromkeys(first) if name in found]
        return [*ordered, *sorted(found - {*ordered})]

    def entries(items: list[Any]) -> list[Any]:
        made: list[Any] = []
        for item in items:
            if isinstance(item, dict):
                ((title, below),) = item.items()
                listed = entries(below if isinstance(below, list) else [below])
                plain = isinstance(below, str) and "*" not in below
                made += [{title: below if plain else listed}] if listed else []
            else:
                made += pages(item) if "*" in item else [item]
        return made

    return entries(nav)


def inside(markdown: str, source: Path, docs: Path) -> str:
    """Links to files of the repository outside of docs as words: text, and the path in brackets."""

    def told(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link["target"]))
        if "://" in link["target"] or target.is_relative_to(docs) or not target.exists():
            return link[0]  # mkdocs itself looks at these
        path = target.relative_to(docs.parent).as_posix()
        return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"

    parts = FENCED.split(markdown)  # every second one is code
    return "".join(part if place % 2 else LINK.sub(told, part) for place, part in enumerate(parts))


def _paths(nav: list[Any]) -> list[str]:
    """Every page that is named without a pattern."""
    found: list[str] = []
    for item in nav:
        below = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(below, list):
            found += _paths(below)
        elif "*" not in below:
            found.append(below)
    return found


def _links(text: str) -> list[str]:
    return [link["target"] for link in LINK.finditer(text)]
