"""Algebra with small integers and a final-answer sentence, in the manner of MATH."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from lastword.tasks import Example
from training.tasks.style import SolutionStep, Style

VARIABLES = "xyn"
PAIRS = (("x", "y"), ("a", "b"), ("p", "q"), ("m", "n"))


@dataclass(frozen=True)
class Problem:
    """A question, the steps that solve it, a check of the result, and the result."""

    question: str
    steps: list[SolutionStep]
    check: str
    value: int


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw an equation, a system, a polynomial, a sequence or an average over small natural numbers."""
    problem = rng.choice(PROBLEMS)(rng)
    style = Style.draw(style_rng)
    answer = style.write(
        opening=style_rng.choice(("We solve this step by step.", problem.question)),
        steps=problem.steps,
        check=problem.check,
        closing=f"Final Answer: The final answer is ${problem.value}$.",
    )
    prompt = f"Problem: {problem.question}{style.requests}\nSolution:\n"
    return Example("algebra", prompt, answer, str(problem.value))


def signed(number: int) -> str:
    """Return a number with its sign, as in `+ 5` or `- 5`."""
    return f"{'-' if number < 0 else '+'} {abs(number)}"


def term(factor: int, variable: str) -> str:
    """Return a product with a variable, as in `x`, `3x` or `-x`."""
    return {1: variable, -1: f"-{variable}"}.get(factor, f"{factor}{variable}")


def ask_equation(rng: random.Random, equation: str, v: str) -> str:
    """Return a question that names the unknown."""
    return rng.choice((f"Solve for {v}: {equation}.", f"Find {v} if {equation}."))


def undo(a: int, v: str, b: int, c: int) -> list[SolutionStep]:
    """Return the steps from `av + b = c` to `v`."""
    move = f"{'Subtract' if b > 0 else 'Add'} {abs(b)} {'from' if b > 0 else 'to'} both sides"
    steps = [
        SolutionStep(
            f"{term(a, v)} = {c} {signed(-b)} = {c - b}",
            f"{move}: {term(a, v)} = {c} {signed(-b)} = {c - b}.",
            f"We want {term(a, v)} alone on the left. {move}. "
            f"The right side is {c} {signed(-b)} = {c - b}, so {term(a, v)} = {c - b}.",
        )
    ]
    x = (c - b) // a
    if a != 1:
        steps.append(
            SolutionStep(
                f"{v} = {c - b} / {a} = {x}",
                f"Divide both sides by {a}: {v} = {c - b} / {a} = {x}.",
                f"Now {v} is multiplied by {a}. Divide both sides by {a}. "
                f"The right side is {c - b} / {a} = {x}, so {v} = {x}.",
            )
        )
    return steps


def two_step(rng: random.Random) -> Problem:
    """Draw an equation such as `3x + 5 = 20`."""
    v, a, x = rng.choice(VARIABLES), rng.randint(2, 5), rng.randint(2, 9)
    b = rng.randint(-min(9, a * x - 1), 9) or 1
    c = a * x + b
    check = f"Check: {a} * {x} = {a * x} and {a * x} {signed(b)} = {c}."
    question = ask_equation(rng, f"{term(a, v)} {signed(b)} = {c}", v)
    return Problem(question, undo(a, v, b, c), check, x)


def both_sides(rng: random.Random) -> Problem:
    """Draw an equation such as `5x + 3 = 2x + 18`."""
    v, a, x = rng.choice(VARIABLES), rng.randint(1, 4), rng.randint(2, 7)
    c, b = rng.randint(1, 3), rng.randint(-min(9, a * x - 1), 9) or 1
    d = a * x + b
    right = d + c * x
    gather = SolutionStep(
        f"{a + c} - {c} = {a}, {term(a, v)} {signed(b)} = {d}",
        f"Subtract {term(c, v)} from both sides: {a + c} - {c} = {a}, so {term(a, v)} {signed(b)} = {d}.",
        f"There are {term(a + c, v)} on the left and {term(c, v)} on the right. "
        f"Since {a + c} - {c} = {a}, taking {term(c, v)} away "
        f"leaves {term(a, v)} {signed(b)} = {d}.",
    )
    equation = f"{term(a + c, v)} {signed(b)} = {term(c, v)} {signed(d)}"
    check = (
        f"Check: {a + c} * {x} = {(a + c) * x} and {(a + c) * x} {signed(b)} = {right}, "
        f"{c} * {x} = {c * x} and {c * x} {signed(d)} = {right}."
    )
    return Problem(ask_equation(rng, equation, v), [gather, *undo(a, v, b, d)], check, x)


def brackets(rng: random.Random) -> Problem:
    """Draw an equation such as `3(x + 4) = 27`, solved by dividing or by opening the brackets."""
    v, a, x = rng.choice(VARIABLES), rng.randint(2, 6), rng.randint(2, 9)
    b = rng.randint(1 - x, 10 - x) or 1
    inside, c = x + b, a * (x + b)
    equation = f"{a}({v} {signed(b)}) = {c}"
    if rng.random() < 0.5:
        opened = f"{term(a, v)} {signed(a * b)} = {c}"
        first = SolutionStep(
            f"{a} * {abs(b)} = {abs(a * b)}, {opened}",
            f"Open the brackets: {a} * {abs(b)} = {abs(a * b)}, so {opened}.",
            f"Multiply each part in the brackets by {a}. {a} * {abs(b)} = {abs(a * b)}, so {opened}.",
        )
        steps = [first, *undo(a, v, a * b, c)]
    else:
        first = SolutionStep(
            f"{v} {signed(b)} = {c} / {a} = {inside}",
            f"Divide both sides by {a}: {v} {signed(b)} = {c} / {a} = {inside}.",
            f"The brackets are multiplied by {a}. Divide both sides by {a}. "
            f"The right side is {c} / {a} = {inside}, so {v} {signed(b)} = {inside}.",
        )
        steps = [first, *undo(1, v, b, inside)]
    check = f"Check: {x} {signed(b)} = {inside} and {a} * {inside} = {c}."
    return Problem(ask_equation(rng, equation, v), steps, check, x)


def sum_and_difference(rng: random.Random) -> Problem:
    """Draw a system such as `x + y = 10` and `x - y = 4`."""
    x, y = rng.choice(PAIRS)
    low, gap = rng.randint(1, 10), rng.randint(1, 10)
    high, total = low + gap, 2 * low + gap
    twice = total + gap
    wanted = rng.choice((x, y))
    steps = [
        SolutionStep(
            f"2{x} = {total} + {gap} = {twice}",
            f"Add the two equations: 2{x} = {total} + {gap} = {twice}.",
            f"Adding the two equations removes {y}. The right side is {total} + {gap} = {twice}, so 2{x} = {twice}.",
        ),
        SolutionStep(
            f"{x} = {twice} / 2 = {high}",
            f"Divide by 2: {x} = {twice} / 2 = {high}.",
            f"Half of {twice} is {high}, so {x} = {high}.",
        ),
    ]
    if wanted == y:
        steps.append(
            SolutionStep(
                f"{y} = {total} - {high} = {low}",
                f"From the first equation, {y} = {total} - {high} = {low}.",
                f"Put {x} = {high} into the first equation: {high} + {y} = {total}. So {y} = {total} - {high} = {low}.",
            )
        )
    question = rng.choice(
        (
            f"If {x} + {y} = {total} and {x} - {y} = {gap}, what is {wanted}?",
            f"Given {x} + {y} = {total} and {x} - {y} = {gap}, find {wanted}.",
        )
    )
    check = f"Check: {high} + {low} = {total} and {high} - {low} = {gap}."
    return Problem(question, steps, check, high if wanted == x else low)


def substitution(rng: random.Random) -> Problem:
    """Draw a system such as `x + y = 10` and `y = 2x + 1`."""
    x, y = rng.choice(PAIRS)
    a, low, b = rng.randint(1, 3), rng.randint(1, 7), rng.randint(1, 6)
    high = a * low + b
    total = low + high
    wanted = rng.choice((x, y))
    joined = f"{x} + {term(a, x)} + {b} = {total}"
    gathered = f"{a + 1}{x} + {b} = {total}"
    first = SolutionStep(
        f"1 + {a} = {a + 1}, {gathered}",
        f"Put {y} into the first equation: {joined}, so {gathered}.",
        f"We know {y} = {term(a, x)} + {b}. Put this into the first equation: {joined}. "
        f"Since 1 + {a} = {a + 1}, this is {gathered}.",
    )
    steps = [first, *undo(a + 1, x, b, total)]
    if wanted == y:
        equation = f"{y} = {total} - {low} = {high}"
        steps.append(SolutionStep(equation, f"Then {equation}."))
    question = rng.choice(
        (
            f"Given {x} + {y} = {total} and {y} = {term(a, x)} + {b}, find {wanted}.",
            f"If {x} + {y} = {total} and {y} = {term(a, x)} + {b}, what is {wanted}?",
        )
    )
    check = f"Check: {a} * {low} = {a * low}, {a * low} + {b} = {high} and {low} + {high} = {total}."
    return Problem(question, steps, check, low if wanted == x else high)


def polynomial(rng: random.Random) -> Problem:
    """Draw the value of a quadratic polynomial."""
    f, x = rng.choice("fgh"), rng.randint(1, 4)
    a, b = rng.randint(1, 2), rng.randint(1, 5)
    c = rng.randint(-min(9, a * x * x + b * x - 1), 9) or 1
    square, first, second = x * x, a * x * x, b * x
    value = first + second + c
    steps = [
        SolutionStep(
            f"{x} * {x} = {square}",
            f"The square of {x} is {x} * {x} = {square}.",
            f"We put x = {x} into {f}(x). First the square: {x} * {x} = {square}.",
        )
    ]
    if a > 1:
        steps.append(
            SolutionStep(
                f"{a} * {square} = {first}",
                f"The first term is {a} * {square} = {first}.",
                f"The first term has the factor {a}, so it is {a} * {square} = {first}.",
            )
        )
    steps += [
        SolutionStep(
            f"{b} * {x} = {second}",
            f"The second term is {b} * {x} = {second}.",
            f"The second term has the factor {b}, so it is {b} * {x} = {second}.",
        ),
        SolutionStep(f"{first} + {second} = {first + second}", f"Their sum is {first} + {second} = {first + second}."),
        SolutionStep(
            f"{first + second} {signed(c)} = {value}",
            f"With the last term, {first + second} {signed(c)} = {value}.",
            f"The last term is {c}, so we get {first + second} {signed(c)} = {value}.",
        ),
    ]
    question = f"If {f}(x) = {term(a, 'x^2')} + {term(b, 'x')} {signed(c)}, what is {f}({x})?"
    check = f"Check: {first} + {second} = {first + second} and {first + second} {signed(c)} = {value}."
    return Problem(question, steps, check, value)


def sequence(rng: random.Random) -> Problem:
    """Draw a term of an arithmetic sequence, computed one by one or by the formula."""
    first, d, n = rng.randint(1, 15), rng.randint(2, 6), rng.randint(3, 8)
    value = first + (n - 1) * d
    if rng.random() < 0.5:
        terms = [first + i * d for i in range(n)]
        steps = [
            SolutionStep(
                f"Term {i}: {a} + {d} = {b}",
                f"Term {i} is {a} + {d} = {b}.",
                f"For term {i} we add {d}: {a} + {d} = {b}.",
            )
            for i, (a, b) in enumerate(pairwise(terms), 2)
        ]
    else:
        steps = [
            SolutionStep(f"{n} - 1 = {n - 1}", f"From term 1 to term {n} there are {n} - 1 = {n - 1} jumps."),
            SolutionStep(
                f"{n - 1} * {d} = {value - first}",
                f"Together they add {n - 1} * {d} = {value - first}.",
                f"Every jump adds {d}, so together they add {n - 1} * {d} = {value - first}.",
            ),
            SolutionStep(f"{first} + {value - first} = {value}", f"Term {n} is {first} + {value - first} = {value}."),
        ]
    question = rng.choice(
        (
            f"A sequence starts at {first} and grows by {d} each time. What is term {n}?",
            f"Term 1 of a sequence is {first} and each next term is {d} more. Find term {n}.",
            f"Begin with {first} as term 1 and add {d} for each next term. What is term {n}?",
        )
    )
    check = f"Check: {value} - {first} = {value - first} and {value - first} / {d} = {n - 1}."
    return Problem(question, steps, check, value)


def average(rng: random.Random) -> Problem:
    """Draw the average of a few numbers, computed by a running sum."""
    count = rng.randint(3, 5)
    numbers = [rng.randint(1, 9) for _ in range(count)]
    numbers[-1] += -sum(numbers) % count
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(
            SolutionStep(
                f"{total} + {number} = {total + number}",
                f"Add {number}: {total} + {number} = {total + number}.",
                f"The next number is {number}: {total} + {number} = {total + number}.",
            )
        )
        total += number
    value = total // count
    steps.append(
        SolutionStep(
            f"{total} / {count} = {value}",
            f"Divide by {count}: {total} / {count} = {value}.",
            f"There are {count} numbers with sum {total}. Divide: {total} / {count} = {value}.",
        )
    )
    question = f"What is the average of {', '.join(map(str, numbers))}?"
    return Problem(question, steps, f"Check: {count} * {value} = {total}.", value)


PROBLEMS: tuple[Callable[[random.Random], Problem], ...] = (
    two_step,
    both_sides,
    brackets,
    sum_and_difference,
    substitution,
    polynomial,
    sequence,
    average,
)
