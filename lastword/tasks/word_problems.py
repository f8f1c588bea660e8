"""Multi-step word problems ending in `#### n`, in the manner of GSM8K.

Problems and worked answers come from `gsm_symbolic` of reasoning-gym 0.1.25 (Apache-2.0), which the
recipe needs and evaluation on the frozen prompts does not. Problems with numbers above `LARGEST`,
decimals, percentages or an untrue equation are drawn again, and every equation is written one
operation at a time with its operands side by side: the embedded models are too small for long
arithmetic. The template alone would fix the length of the worked answer, so each is retold in a
voice of its own: bare equations, as written or explained, with or without the question restated
and the equations repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lastword.errors import ExtraError, TaskError
from lastword.extras import install
from lastword.tasks.scoring import number_after_hashes
from lastword.tasks.task import Example, Family
from lastword.tasks.voice import BARE, Step, Voice

LARGEST = 40
# Templates whose steps are one operation each, or a chain of sums, on small numbers.
TEMPLATES = (4, 9, 10, 16, 31, 43, 48, 62, 72)
_ZERO = re.compile(r"(\d)\.0+(?!\d)")
_NUMBER = re.compile(r"\d+")
_UNIT = re.compile(r"(\d)(?: [a-z]+)+ (?=[-+*/x] )")  # what is counted, between a number and its sign
_LOOSE = re.compile(r"(?<=\d) ?([-+*/x=]) ?(?=\d)")
_EQUATION = re.compile(r"(?<![-+*/] )\d+(?: [-+*/] \d+)+ = \d+")
_ALLOWED = re.compile(r"[A-Za-z0-9 $+*/=().,:;?!'\n-]+")


class WordProblems(Family):
    """Everyday questions with whole numbers up to 40."""

    name = "word_problems"

    def generate(self, rng: random.Random, manner: random.Random | None = None) -> Example:
        manner = manner or rng
        make = _templates()[rng.choice(TEMPLATES)]
        for _ in range(10_000):
            item = make(rng, 1.0)
            question = _plain(item["question"])
            *lines, last = _plain(item["metadata"]["answer_cot"]).split("\n")
            lines = [_tidy(line) for line in lines]
            target = last.removeprefix("#### ")
            if _easy(question, lines, target):
                voice = Voice.draw(manner)
                return Example(
                    self.name,
                    f"Question: {question}{voice.asked}\nAnswer:\n",
                    _retell(voice, question, lines, target),
                    target,
                )
        raise TaskError(
            "gsm_symbolic gave no problem with small whole numbers in 10000 draws; "
            "the tasks were selected for reasoning-gym 0.1.25, install that version."
        )

    def score(self, example: Example, text: str) -> bool:
        return number_after_hashes(text) == example.target


def _retell(voice: Voice, question: str, lines: list[str], target: str) -> str:
    equations = [found.group() for line in lines for found in _EQUATION.finditer(line)]
    asked = re.split(r"(?<=[.?!]) ", question)[-1]
    steps = []
    for line in lines:
        own = [found.group() for found in _EQUATION.finditer(line)]
        steps.append(Step("\n".join(own), line, f"{line} That is, {' and '.join(own)}."))
    opening = asked if voice.detail != BARE else "We need only the numbers."
    check = f"Check: {'; '.join(equations) or f'we found {target}'}."
    return voice.write(opening, steps, check, f"#### {target}")


def _plain(text: str) -> str:
    text = _ZERO.sub(r"\1", text).replace("\u00d7", "*").replace("\u00f7", "/")
    return re.sub(r"[\u20ac\u00a3]", "$", text)


def _tidy(line: str) -> str:
    """Equations without units or currency, evenly spaced, one operation each."""
    line = _UNIT.sub(r"\1 ", line.replace("$", ""))
    line = _LOOSE.sub(lambda found: f" {found.group(1)} ".replace("x", "*"), line)
    return _EQUATION.sub(lambda found: _one_by_one(found.group()), line)


def _one_by_one(equation: str) -> str:
    """A chain of sums as steps of two numbers; other chains stay as they are.

    >>> _one_by_one("38 - 6 - 12 = 20")
    '38 - 6 = 32, 32 - 12 = 20'
    """
    first, *rest, _, _ = equation.split(" ")
    if len(rest) <= 2 or set(rest[::2]) - {"+", "-"}:
        return equation
    told, value = [], int(first)
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        result = value + int(number) if sign == "+" else value - int(number)
        told.append(f"{value} {sign} {number} = {result}")
        value = result
    return ", ".join(told)


def _easy(question: str, lines: list[str], target: str) -> bool:
    text = "\n".join([question, *lines])
    return (
        len(question) <= 420
        and sum(map(len, lines)) <= 420
        and target.isdigit()
        and _ALLOWED.fullmatch(text) is not None
        and re.search(r"\d\.\d|\d,\d", text) is None
        and all(int(n) <= LARGEST for n in _NUMBER.findall(text))
        and all(_EQUATION.search(line) for line in lines)
        and all(_holds(found.group()) for line in lines for found in _EQUATION.finditer(line))
    )


def _holds(equation: str) -> bool:
    """Whether it has one operation and is true: some templates round a division down.

    >>> _holds("18 / 6 = 3"), _holds("18 / 12 = 1")
    (True, False)
    """
    if len(parts := equation.split(" ")) != 5:
        return False
    a, b, c = (int(parts[place]) for place in (0, 2, 4))
    return {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b * c == a}[parts[1]]


@lru_cache(maxsize=1)
def _templates() -> dict[int, Callable[[random.Random, float], dict[str, Any]]]:
    try:
        from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import (
            GSMSymbolicDataset,
            GSMSymbolicDatasetConfig,
        )
    except ImportError as missing:
        raise ExtraError(
            "word problems are made by reasoning-gym, which is not installed: take load_frozen(), which "
            f"needs no generator, or {install('training')}"
        ) from missing
    return GSMSymbolicDataset(GSMSymbolicDatasetConfig(size=1, seed=0)).generators
