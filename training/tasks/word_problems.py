"""Multi-step word problems ending in `#### n`, in the manner of GSM8K.

Problems and worked answers come from `gsm_symbolic` of reasoning-gym 0.1.25 (Apache-2.0), which training
needs and evaluation on the frozen prompts does not. Problems with numbers above `LARGEST`, decimals,
percentages or a false equation are rejected, and every equation has one operation with adjacent operands:
the embedded models are too small for long arithmetic. The template alone would determine the length of the
worked answer, so the answer is rewritten in a random style: bare equations, as written or explained, with
or without the question restated and the equations repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any

from lastword.errors import ExtraError, TaskError, install_command
from lastword.tasks import Example
from training.tasks.style import BARE, SolutionStep, Style

LARGEST = 40
# Templates whose steps are one operation each, or a chain of sums, on small numbers.
TEMPLATES = (4, 9, 10, 16, 31, 43, 48, 62, 72)
_ZERO = re.compile(r"(\d)\.0+(?!\d)")
_NUMBER = re.compile(r"\d+")
_UNIT = re.compile(r"(\d)(?: [a-z]+)+ (?=[-+*/x] )")  # a unit between a number and its operator
_LOOSE = re.compile(r"(?<=\d) ?([-+*/x=]) ?(?=\d)")
_EQUATION = re.compile(r"(?<![-+*/] )\d+(?: [-+*/] \d+)+ = \d+")
_ALLOWED = re.compile(r"[A-Za-z0-9 $+*/=().,:;?!'\n-]+")


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw an everyday question with whole numbers up to 40."""
    make = _templates()[rng.choice(TEMPLATES)]
    for _ in range(10_000):
        item = make(rng, 1.0)
        question = _plain(item["question"])
        *lines, last = _plain(item["metadata"]["answer_cot"]).split("\n")
        lines = [_tidy(line) for line in lines]
        target = last.removeprefix("#### ")
        if _easy(question, lines, target):
            style = Style.draw(style_rng)
            prompt = f"Question: {question}{style.requests}\nAnswer:\n"
            return Example("word_problems", prompt, _rewrite(style, question, lines, target), target)
    raise TaskError(
        "gsm_symbolic returned no problem with small whole numbers in 10000 draws; "
        "the templates were selected for reasoning-gym 0.1.25, install that version"
    )


def _rewrite(style: Style, question: str, lines: list[str], target: str) -> str:
    equations = [[match.group() for match in _EQUATION.finditer(line)] for line in lines]
    steps = [
        SolutionStep("\n".join(some), line, f"{line} That is, {' and '.join(some)}.")
        for line, some in zip(lines, equations, strict=True)
    ]
    last_sentence = re.split(r"(?<=[.?!]) ", question)[-1]
    opening = last_sentence if style.detail != BARE else "We need only the numbers."
    check = f"Check: {'; '.join(chain.from_iterable(equations)) or f'we found {target}'}."
    return style.write(opening, steps, check, f"#### {target}")


def _plain(text: str) -> str:
    text = _ZERO.sub(r"\1", text).replace("\u00d7", "*").replace("\u00f7", "/")
    return re.sub(r"[\u20ac\u00a3]", "$", text)


def _tidy(line: str) -> str:
    """Return equations without units or currency, evenly spaced, with one operation per equation."""
    line = _UNIT.sub(r"\1 ", line.replace("$", ""))
    line = _LOOSE.sub(lambda match: f" {match.group(1)} ".replace("x", "*"), line)
    return _EQUATION.sub(lambda match: _one_by_one(match.group()), line)


def _one_by_one(equation: str) -> str:
    """Split a chain of sums into equations of two numbers; other chains stay unchanged.

    >>> _one_by_one("38 - 6 - 12 = 20")
    '38 - 6 = 32, 32 - 12 = 20'
    """
    first, *terms, _, _ = equation.split(" ")
    if len(terms) <= 2 or set(terms[::2]) - {"+", "-"}:
        return equation
    steps, value = [], int(first)
    for sign, number in zip(terms[::2], terms[1::2], strict=True):
        result = value + int(number) if sign == "+" else value - int(number)
        steps.append(f"{value} {sign} {number} = {result}")
        value = result
    return ", ".join(steps)


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
        and all(_holds(match.group()) for line in lines for match in _EQUATION.finditer(line))
    )


def _holds(equation: str) -> bool:
    """Return whether the equation has one operation and is true: some templates round a division down.

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
        from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import GSMSymbolicDataset, GSMSymbolicDatasetConfig
    except ImportError as error:
        raise ExtraError(
            "word problems need reasoning-gym, which is not installed: use load_frozen(), which needs no "
            f"generator, or {install_command('training')}"
        ) from error
    return GSMSymbolicDataset(GSMSymbolicDatasetConfig(size=1, seed=0)).generators
