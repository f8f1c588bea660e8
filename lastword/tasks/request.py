"""Requests: what a prompt says about the manner of its answer, and so about its length.

A writer follows a request. Where none is made the manner is the writer's own choice, and the part
of an answer's length that depends on it cannot be predicted.
"""

from __future__ import annotations

import random

TOLD = 0.8  # how often a prompt asks for the manner its answer has

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
EVERY = (
    BRIEF, SENTENCES, EXPLAIN, CHECK, ONE_LINE, STAGES, LOOP, SKIP, INDEX, PLAN, COMMENT, GUARD,
    EXAMPLE, TYPES, DOCUMENT,
)  # fmt: skip


def told(rng: random.Random, *requests: str) -> str:
    """The requests a prompt makes of those its answer meets, each with a space before it."""
    return "".join(f" {request}" for request in requests if rng.random() < TOLD)


def without(prompt: str) -> str:
    """The prompt as if it had asked for nothing: the same question in every manner is one question.

    >>> without("Q: What is 1 + 1? Be brief. Check the result.")
    'Q: What is 1 + 1?'
    """
    for request in EVERY:
        prompt = prompt.replace(f" {request}", "")
    return prompt
