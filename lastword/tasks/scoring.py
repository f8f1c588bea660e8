"""The final answer of a text, found as strictly as each benchmark's own rule finds it."""

from __future__ import annotations

import re

_HASHES = re.compile(r"^#### (-?\d+)[ \t]*$", re.MULTILINE)
_FINAL = re.compile(r"Final Answer: The final answer is \$(-?\d+)\$")
_SO = re.compile(r"^So the answer is (.+)\.[ \t]*$", re.MULTILINE)


def number_after_hashes(text: str) -> str | None:
    """The first `#### n` that stands on its own line (GSM8K).

    >>> number_after_hashes("3 + 4 = 7\\n#### 7")
    '7'
    """
    return _first(_HASHES, text)


def final_answer(text: str) -> str | None:
    """The number in the final-answer sentence (MATH).

    >>> final_answer("Final Answer: The final answer is $-4$.")
    '-4'
    """
    return _first(_FINAL, text)


def so_the_answer_is(text: str) -> str | None:
    """What the closing sentence says, without its full stop, which must be there (BBH).

    >>> so_the_answer_is("So the answer is True.")
    'True'
    >>> so_the_answer_is("So the answer is True") is None
    True
    """
    return _first(_SO, text)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found.group(1) if found else None
