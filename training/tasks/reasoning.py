"""Logic, sorting, tracking and counting with written reasoning, in the manner of BIG-Bench Hard."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from lastword.tasks import Example
from training.tasks.style import SolutionStep, Style, words

PEOPLE = words("Ada Ben Cleo Dan Eva Finn Gina Hugo")
THINGS = words("ball book coin cup hat key lamp ring")
WORDS = words("""
    apple bird cat dog egg fish goat hand ice jar king lion moon nest oak pig queen rain star tree
    van wolf
""")
KINDS = {
    "fruits": words("apples grapes lemons mangos plums pears"),
    "animals": words("bears cats cows dogs goats pigs"),
    "tools": words("axes drills hammers nails saws spades"),
    "clothes": words("caps coats gloves hats shirts socks"),
}
OPENINGS = ("Let us go through this in order.", "We take the facts one after another and keep track.")


@dataclass(frozen=True)
class Puzzle:
    """A question, the steps that answer it, a closing check, and the answer."""

    question: str
    steps: list[SolutionStep]
    check: str
    answer: str


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw a boolean expression, truth tellers, words to sort, swapped objects or objects to count."""
    style = Style.draw(style_rng)
    puzzle = rng.choice(PUZZLES)(rng)
    answer = style.write(
        opening=style_rng.choice(OPENINGS),
        steps=puzzle.steps,
        check=puzzle.check,
        closing=f"So the answer is {puzzle.answer}.",
    )
    return Example("reasoning", f"Q: {puzzle.question}{style.requests}\nA:\n", answer, puzzle.answer)


def boolean_expression(rng: random.Random) -> Puzzle:
    """Draw a chain of operators in brackets, reduced from the innermost bracket, the leftmost, outwards."""
    value = rng.random() < 0.5
    start = str(value)
    stages: list[tuple[str, bool]] = []  # each operation and its value, in order of evaluation
    suffixes: list[str] = []  # text after the closing bracket of each operation
    for _ in range(rng.randint(3, 6)):
        word, other = rng.choice(("and", "or")), rng.random() < 0.5
        suffixes = [f"{suffix} {word} {other})" for suffix in suffixes] + [""]
        before, value = value, (value and other) if word == "and" else (value or other)
        stages.append((f"{before} {word} {other}", value))
    text = f"({stages[0][0]}){suffixes[0]}"
    steps = []
    for i, ((operation, result), suffix) in enumerate(zip(stages, suffixes, strict=True), 1):
        opened = "(" * (len(stages) - i)
        left = f" This leaves {opened}{result}{suffix}." if suffix else ""
        steps.append(
            SolutionStep(
                f"{operation} = {result}",
                f"({operation}) is {result}.{left}" if i % 2 else f"({operation}) is {result}.",
                f"The innermost part is ({operation}). It is {result}.{left}",
            )
        )
    check = f"Check: we began with {start} and made {len(stages)} steps."
    return Puzzle(f"What is {'(' * (len(stages) - 1)}{text}?", steps, check, str(value))


def truth_tellers(rng: random.Random) -> Puzzle:
    """Draw a chain of people who state that another person lies or tells the truth."""
    people = rng.sample(PEOPLE, rng.randint(3, 5))
    honest = rng.random() < 0.5
    verb = {True: "tells the truth", False: "lies"}
    claims = [f"{people[0]} {verb[honest]}."]
    steps = [SolutionStep("", f"{people[0]} {verb[honest]}.", f"We are told that {people[0]} {verb[honest]}.")]
    for before, person in pairwise(people):
        claim = rng.random() < 0.5
        claims.append(f"{person} says {before} {verb[claim]}.")
        right, was_honest = claim == honest, honest
        honest = right
        steps.append(
            SolutionStep(
                f"{before} {verb[was_honest]}, said {verb[claim]}: {str(right).lower()}, {person} {verb[honest]}.",
                f"{before} {verb[was_honest]} and {person} says {before} {verb[claim]}, "
                f"which is {str(right).lower()}, so {person} {verb[honest]}.",
                f"We know {before} {verb[was_honest]}. {person} says {before} {verb[claim]}. "
                f"This is {str(right).lower()}, and who says what is {str(right).lower()} "
                f"{verb[honest]}, so {person} {verb[honest]}.",
            )
        )
    question = f"{' '.join(claims)} Does {people[-1]} tell the truth?"
    check = f"Check: the chain has {len(people)} people and ends with {people[-1]}, who {verb[honest]}."
    return Puzzle(question, steps, check, "Yes" if honest else "No")


def word_sorting(rng: random.Random) -> Puzzle:
    """Draw words to sort by selecting the first of the remaining words repeatedly."""
    listed = rng.sample(WORDS, rng.randint(3, 6))
    ordered = sorted(listed)
    steps = [
        SolutionStep(
            f"{i}: {word}", f"Word {i} is {word}.", f"Of the words left, {word} comes first, so word {i} is {word}."
        )
        for i, word in enumerate(ordered, 1)
    ]
    if rng.random() < 0.4:
        letters = ", ".join(f"{w} has {w[0]}" for w in listed)
        steps = [SolutionStep(letters + ".", f"The first letters: {letters}.")]
    check = f"Check: there were {len(listed)} words, from {ordered[0]} to {ordered[-1]}."
    question = f"Sort these words by the alphabet: {' '.join(listed)}."
    return Puzzle(question, steps, check, " ".join(ordered))


def shuffled_objects(rng: random.Random) -> Puzzle:
    """Draw a series of swaps of objects between people."""
    people = rng.sample(PEOPLE, 3)
    held = dict(zip(people, rng.sample(THINGS, len(people)), strict=True))
    story = [f"{person} has the {thing}." for person, thing in held.items()]
    steps = []
    for _ in range(rng.randint(1, 3)):
        a, b = rng.sample(people, 2)
        story.append(f"{a} and {b} swap.")
        held[a], held[b] = held[b], held[a]
        state = ", ".join(f"{p}: {t}" for p, t in held.items())
        steps.append(
            SolutionStep(
                state,
                f"After {a} and {b} swap, {state}.",
                f"{a} and {b} swap: {a} gets the {held[a]}, {b} gets the {held[b]}. Now {state}.",
            )
        )
    person = rng.choice(people)
    question = f"{' '.join(story)} What does {person} have at the end?"
    check = f"Check: at the end {', '.join(f'{p} has the {t}' for p, t in held.items())}."
    return Puzzle(question, steps, check, f"the {held[person]}")


def counting_objects(rng: random.Random) -> Puzzle:
    """Draw a mixed list in which the objects of one kind are counted."""
    wanted, other = rng.sample(sorted(KINDS), 2)
    chosen = [(name, True) for name in rng.sample(KINDS[wanted], rng.randint(2, 3))]
    chosen += [(name, False) for name in rng.sample(KINDS[other], rng.randint(0, 2))]
    rng.shuffle(chosen)
    counts = {name: rng.randint(2, 6) for name, _ in chosen}

    def amount(name: str) -> str:
        return f"{counts[name]} {name}"

    steps, total = [], 0
    for name, counted in chosen:  # one line per object, so that the question determines the number of lines
        if not counted:
            steps.append(
                SolutionStep(
                    f"{amount(name)}: no",
                    f"{amount(name)}: not {wanted}.",
                    f"{amount(name)}: these are {other}, so we skip them.",
                )
            )
            continue
        sum_now = f"{total} + {counts[name]} = {total + counts[name]}"
        steps.append(
            SolutionStep(
                f"{amount(name)}: {sum_now}",
                f"{amount(name)}: {wanted}, {sum_now}.",
                f"{amount(name)}: these are {wanted}, so we count {sum_now}.",
            )
        )
        total += counts[name]
    question = f"I have {', '.join(amount(name) for name, _ in chosen)}. How many {wanted} do I have?"
    kinds = [name for name, counted in chosen if counted]
    check = f"Check: {' and '.join(amount(name) for name in kinds)} make {total}."
    return Puzzle(question, steps, check, str(total))


PUZZLES: tuple[Callable[[random.Random], Puzzle], ...] = (
    boolean_expression,
    truth_tellers,
    word_sorting,
    shuffled_objects,
    counting_objects,
)
