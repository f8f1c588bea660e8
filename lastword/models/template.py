"""Chat templates: code that comes with a checkpoint, run in jinja's sandbox and for so many lines only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_LETTERS = 10**6  # of a template; published ones have some thousands
MOST_LINES = 2 * 10**6  # run for one conversation: a second or two
MOST_MADE = 10**6  # what a multiplication in a template may make


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, without multiplications that take all time or memory, which it would do as it compiles."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(it) if isinstance(it, (str, list, tuple)) else abs(it) for it in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > MOST_MADE:
            raise SecurityError(f"a template may not compute with {operator} on such numbers")
        return super().call_binop(context, operator, left, right)


_JINJA = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])


@lru_cache(maxsize=8)  # no field of a tokenizer: a template cannot be pickled
def compiled(text: str) -> jinja2.Template:
    """A template ready to render; whatever is raised says what is wrong with it."""
    if len(text) > MOST_LETTERS:
        raise ValueError(f"the chat template has {len(text)} letters, and at most {MOST_LETTERS} are read")
    return _JINJA.from_string(text)


def rendered(text: str, **names: object) -> str:
    """What a template makes of a conversation; it is foreign code, and may raise anything."""
    template = compiled(text)
    with _at_most(MOST_LINES):
        return template.render(**names)


@contextmanager
def _at_most(lines: int) -> Iterator[None]:
    """Stop the Python inside that would run for more lines, as a loop without an end does."""
    left, before = lines, sys.gettrace()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            raise RuntimeError(f"it ran for {lines} lines and was stopped")
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
