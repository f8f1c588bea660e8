"""Requests: sentences of a prompt about the style of its answer, and so about the answer's length.

An answer meets every request of its prompt. Where the prompt makes none, the style is drawn at random, and
the part of the answer's length that depends on the style cannot be predicted.
"""

from __future__ import annotations

import random

PROBABILITY = 0.8  # how often a prompt requests a property of its answer

BRIEF = "Be brief."
SENTENCES = "Use sentences."
EXPLAIN = "Explain every step."
CHECK = "Check the result."
ONE_LINE = "Use one line."
STAGES = "Work in stages."
LOOP = "Use a loop."
SKIP = "Skip what does not count."
INDEX = "Use an index."
PLAN = "Plan first."
COMMENT = "Add comments."
GUARD = "Guard against empty input."
EXAMPLE = "Repeat the example."
TYPES = "Add types."
DOCUMENT = "Add a docstring."
ALL_REQUESTS = (
    BRIEF, SENTENCES, EXPLAIN, CHECK, ONE_LINE, STAGES, LOOP, SKIP, INDEX, PLAN, COMMENT, GUARD,
    EXAMPLE, TYPES, DOCUMENT,
)  # fmt: skip


def draw_requests(rng: random.Random, *requests: str) -> str:
    """Return a random part of the requests that the answer meets, with a space before every request."""
    return "".join(f" {request}" for request in requests if rng.random() < PROBABILITY)


def remove_requests(prompt: str) -> str:
    """Return the prompt without its requests: prompts that differ only in style ask the same question.

    >>> remove_requests("Q: What is 1 + 1? Be brief. Check the result.")
    'Q: What is 1 + 1?'
    """
    for request in ALL_REQUESTS:
        prompt = prompt.replace(f" {request}", "")
    return prompt
