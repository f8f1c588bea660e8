"""Hooks of mkdocs: the order of the navigation, tables of command options, and links that the site cannot follow."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
OPTIONS = re.compile(r"^<!-- options: (?P<command>\w+) -->\n", re.MULTILINE)
DEFAULT = re.compile(r"\s*Default: (?P<default>.+?)\.?$")  # at the end of a help text
VALUES = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the navigation says `folder/*.md`."""
    config.nav = expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page with tables of options, and without other comments and links to files that the site lacks."""
    source = Path(config.docs_dir) / page.file.src_uri
    markdown = OPTIONS.sub(lambda marker: options_tables(marker["command"]), markdown)
    return without_outer_links(COMMENT.sub("", markdown), source, Path(config.docs_dir))


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """Return the navigation with every pattern replaced by its pages, in reading order.

    Pages are in the order in which the folder's index.md links to them, then by name. A pattern does not repeat pages
    that the navigation names elsewhere. A pattern without pages is left out.
    """
    listed = set(_paths(nav))

    def pages(pattern: str) -> list[str]:
        matches = {path.relative_to(docs).as_posix() for path in docs.glob(pattern)} - listed
        listed.update(matches)
        index = docs / Path(pattern).parent / "index.md"
        text = index.read_text(encoding="utf-8") if index.exists() else ""
        linked = [(Path(pattern).parent / name).as_posix() for name in _links(text)]
        first = [f"{Path(pattern).parent.as_posix()}/index.md", *linked]
        ordered = [name for name in dict.fromkeys(first) if name in matches]
        return [*ordered, *sorted(matches - {*ordered})]

    def entries(items: list[Any]) -> list[Any]:
        result: list[Any] = []
        for item in items:
            if isinstance(item, dict):
                ((title, content),) = item.items()
                children = entries(content if isinstance(content, list) else [content])
                is_page = isinstance(content, str) and "*" not in content
                result += [{title: content if is_page else children}] if children else []
            else:
                result += pages(item) if "*" in item else [item]
        return result

    return entries(nav)


def without_outer_links(markdown: str, source: Path, docs: Path) -> str:
    """Return a page in which links to files outside of docs are text, with the path of the file in brackets."""

    def as_text(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link["target"]))
        if "://" in link["target"] or target.is_relative_to(docs) or not target.exists():
            return link[0]  # mkdocs checks these links
        path = target.relative_to(docs.parent).as_posix()
        return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"

    parts = FENCED.split(markdown)  # every second one is code
    return "".join(part if index % 2 else LINK.sub(as_text, part) for index, part in enumerate(parts))


def options_tables(command: str) -> str:
    """Return the arguments and options of a command as Markdown tables, one per panel of its help text.

    Options without a panel are first. `--help` is left out.
    """
    from typer.main import get_command

    from lastword.cli import COMMANDS, app

    annotations = inspect.signature(COMMANDS[command]).parameters
    panels: dict[str, list[str]] = {"": []}
    for parameter in get_command(app).commands[command].params:  # type: ignore[attr-defined]  # it is a group
        if parameter.name in annotations:
            rows = panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", [])
            rows.append(_option_row(parameter, annotations[parameter.name].annotation))
    head = ["| option | value | default | description |", "|---|---|---|---|"]
    tables = [
        "\n".join([*([f"**{panel}**", ""] if panel else []), *head, *rows]) for panel, rows in panels.items() if rows
    ]
    return "\n\n".join(tables) + "\n"


def _option_row(parameter: Any, annotation: Any) -> str:
    """Return the table row of a click parameter; a default at the end of its help text becomes the third cell."""
    is_flag = bool(getattr(parameter, "is_flag", False))
    if parameter.param_type_name == "argument":
        names, value = [parameter.name.upper()], ""
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        value = "" if is_flag else _value_name(parameter.metavar, annotation)
    text = " ".join((parameter.help or "").split())
    default = ""
    if parameter.required:
        default = "required"
    elif stated := DEFAULT.search(text):
        text, default = text[: stated.start()], stated["default"]
    elif is_flag:
        default = f"`{names[0]}`" if parameter.default else ""
    elif parameter.default is not None:
        is_float = isinstance(parameter.default, float)
        default = f"`{parameter.default:g}`" if is_float else f"`{parameter.default}`"
    cells = [", ".join(f"`{name}`" for name in names), f"`{value}`" if value else "", default]
    return "| " + " | ".join([*cells, text.replace("|", r"\|")]) + " |"


def _value_name(metavar: str | None, annotation: Any) -> str:
    """Return the name of an option's value: its metavar, or one for the type of the function's parameter."""
    if metavar and not metavar.startswith("<"):
        return metavar
    return next((VALUES[kind] for kind in _types(annotation) if kind in VALUES), "TEXT")


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types inside an annotation such as `Annotated[list[str] | None, ...]`."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    for argument in arguments:
        yield from _types(argument)
    if not arguments:
        yield annotation


def _paths(nav: list[Any]) -> list[str]:
    """Return every page that is named without a pattern."""
    paths: list[str] = []
    for item in nav:
        content = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(content, list):
            paths += _paths(content)
        elif "*" not in content:
            paths.append(content)
    return paths


def _links(text: str) -> list[str]:
    return [link["target"] for link in LINK.finditer(text)]
