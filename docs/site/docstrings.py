"""Griffe extension: what docstrings and comments say, as the reference shows it."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *\w+: .*  # (.+)$")


def fenced(text: str) -> str:
    """A docstring whose doctests are code; else `>>>` would be a quotation."""
    return EXAMPLE.sub(lambda example: f"```python\n{example[0].rstrip()}\n```", text)


def fields(lines: dict[str, str]) -> str:
    """A table of a class's fields from the comments behind them, or nothing where there are none."""
    found = {name: said[1] for name, line in lines.items() if (said := COMMENT.match(line))}
    rows = "".join(f"| `{name}` | {said[0].upper()}{said[1:]} |\n" for name, said in found.items())
    return f"\n\n| field | |\n|---|---|\n{rows}" if rows else ""


class Docstrings(griffe.Extension):
    """Changes docstrings as they are collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            own = {a.name: a.source for a in cls.attributes.values() if not a.is_private}
            cls.docstring.value += fields(own)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the options of a function with `**options: Unpack[Options]` as its parameters."""
        module = pkg["api"]
        for function in module.functions.values():
            for last in [*function.parameters]:
                if str(last.annotation).startswith("Unpack["):
                    del function.parameters[last.name]
                    own = module[str(last.annotation.slice)]
                    found = {name: each for cls in (*own.mro(), own) for name, each in cls.attributes.items()}
                    for name, each in found.items():
                        kind = griffe.ParameterKind.keyword_only
                        option = griffe.Parameter(name, annotation=each.annotation, kind=kind, default="...")
                        function.parameters.add(option)
