"""Complete a Python function from its signature and docstring, in the manner of HumanEval."""

from __future__ import annotations

import random

from lastword.tasks import Example
from training.tasks import requests
from training.tasks.programs import (
    COUNT,
    LARGEST,
    LIST,
    SMALLEST,
    SORTED,
    SUM,
    UNIQUE,
    Part,
    Pipeline,
    asserts,
    informative,
)

PARAMETERS = ("numbers", "values", "data", "nums")
HIDDEN_TESTS = 6
GATHERS = (LIST, SUM, COUNT, LARGEST, SMALLEST, SORTED, UNIQUE)


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw a function over a list of integers; the answer is its body."""
    parameter = rng.choice(PARAMETERS)
    program = _program(rng, parameter)
    gather = program.gather
    name, returned = program.name, "int" if gather.type == "int" else "list[int]"
    example, *_ = informative(program, parameter, [_numbers(rng, rng.randint(3, 5)) for _ in range(4)], 1)
    body, requested = program.body(style_rng, parameter)
    repeats = style_rng.random() < 0.2
    requested += requests.draw_requests(style_rng, *[requests.EXAMPLE] * repeats)
    prompt = (
        f"def {name}({parameter}: list[int]) -> {returned}:\n"
        f'    """Return {program.sentence}.{requested}\n\n'
        f"    >>> {name}({example})\n"
        f"    {program.run(example, parameter)}\n"
        f'    """\n'
    )
    inputs = [_numbers(rng, rng.randint(4, 9)) for _ in range(4 * HIDDEN_TESTS)]
    hidden = [[], *informative(program, parameter, inputs, HIDDEN_TESTS)]
    tests = "\n".join(asserts(program, name, parameter, hidden))
    note = f"    # For example, {example} gives {program.run(example, parameter)}.\n"
    return Example("complete_function", prompt, note * repeats + body, tests)


def _program(rng: random.Random, parameter: str) -> Pipeline:
    gather, keep = rng.choice(GATHERS), _keep(rng)
    change = Part("{}", "", "") if gather is COUNT else _change(rng)
    while not (keep.code or change.code):  # a program that only copies would be too short
        keep = _keep(rng)
    return Pipeline(Part(parameter, "", "{s}"), keep, change, gather)


def _numbers(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(-9, 20) for _ in range(count)]


def _keep(rng: random.Random) -> Part:
    k = rng.randint(2, 9)
    return rng.choice(
        (
            Part("the numbers in {}", "all", ""),
            Part("the even numbers in {}", "even", "{x} % 2 == 0"),
            Part("the odd numbers in {}", "odd", "{x} % 2 == 1"),
            Part("the positive numbers in {}", "positive", "{x} > 0"),
            Part("the negative numbers in {}", "negative", "{x} < 0"),
            Part(f"the numbers above {k} in {{}}", "above", f"{{x}} > {k}"),
            Part(f"the numbers below {k} in {{}}", "below", f"{{x}} < {k}"),
            Part(f"the multiples of {k} in {{}}", "multiples", f"{{x}} % {k} == 0"),
            Part(f"the numbers other than {k} in {{}}", "other", f"{{x}} != {k}"),
            Part(f"the even numbers above {k} in {{}}", "even_above", f"{{x}} % 2 == 0 and {{x}} > {k}"),
            Part(f"the odd numbers below {k} in {{}}", "odd_below", f"{{x}} % 2 == 1 and {{x}} < {k}"),
        )
    )


def _change(rng: random.Random) -> Part:
    k = rng.randint(2, 9)
    return rng.choice(
        (
            Part("{}", "", ""),
            Part("the squares of {}", "squares", "{x} * {x}"),
            Part("the doubles of {}", "doubles", "2 * {x}"),
            Part("the absolute values of {}", "abs", "abs({x})"),
            Part("the opposites of {}", "opposites", "-{x}"),
            Part(f"{{}}, each plus {k}", f"plus_{k}", f"{{x}} + {k}"),
            Part(f"{{}}, each times {k}", f"times_{k}", f"{{x}} * {k}"),
            Part(f"{{}}, each minus {k}", f"minus_{k}", f"{{x}} - {k}"),
            Part(f"the remainders by {k} of {{}}", f"mod_{k}", f"{{x}} % {k}"),
        )
    )
