"""Help texts as they are printed: prose without our line breaks, examples that can be copied."""

from __future__ import annotations

import inspect
import re

WIDTH = 76  # letters of an example; a terminal has 80 columns, and two of them are blank


def help_of(docstring: str | None) -> str:
    """A docstring for typer: a paragraph is one line, which the terminal wraps; examples stand together.

    Brackets are escaped, since rich would take what is in them for a style.
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    text = ""
    for before, paragraph in zip(["", *paragraphs], paragraphs):
        if _is_example(paragraph):
            between = "\n" if _is_example(before) else "\n\n"
            text += between + _wrapped(" ".join(paragraph.replace("\\\n", " ").split()))
        else:
            text += ("\n\n" if text else "") + " ".join(paragraph.split())
    return text.replace("[", "\\[")


def _is_example(paragraph: str) -> bool:
    return paragraph.startswith("  ")


def _wrapped(command: str) -> str:
    """A command, continued on lines of its own before an option where it is too long for one."""
    lines = [""]
    for part in re.split(r" (?=--?[a-z])", command):
        longer = f"{lines[-1]} {part}" if lines[-1] else part
        if lines[-1] and len(longer) > WIDTH - 4:
            lines.append(part)
        else:
            lines[-1] = longer
    return "  " + " \\\n    ".join(lines)
