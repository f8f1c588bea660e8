"""A griffe extension that prepares docstrings and field comments for the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *\w+: .*  # (.+)$")


def fenced(text: str) -> str:
    """Return a docstring with its doctests in code blocks; otherwise Markdown would show `>>>` as quotations."""
    return EXAMPLE.sub(lambda example: f"```python\n{example[0].rstrip()}\n```", text)


def fields_table(lines: dict[str, str]) -> str:
    """Return a table of a class's fields with the comments after them, or empty text if there are no comments."""
    comments = {name: match[1] for name, line in lines.items() if (match := COMMENT.match(line))}
    rows = "".join(f"| `{name}` | {text[0].upper()}{text[1:]} |\n" for name, text in comments.items())
    return f"\n\n| field | |\n|---|---|\n{rows}" if rows else ""


class Docstrings(griffe.Extension):
    """An extension that changes docstrings and signatures when griffe collects them."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            public = {field.name: field.source for field in cls.attributes.values() if not field.is_private}
            cls.docstring.value += fields_table(public)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the options of a function with `**options: Unpack[Options]` as its parameters."""
        module = pkg["api"]
        for function in module.functions.values():
            for parameter in [*function.parameters]:
                if str(parameter.annotation).startswith("Unpack["):
                    del function.parameters[parameter.name]
                    options = module[str(parameter.annotation.slice)]
                    fields = {
                        name: field for cls in (*options.mro(), options) for name, field in cls.attributes.items()
                    }
                    for name, field in fields.items():
                        kind = griffe.ParameterKind.keyword_only
                        option = griffe.Parameter(name, annotation=field.annotation, kind=kind, default="...")
                        function.parameters.add(option)
