"""Decoding in one of the ways there are, and what came of it, prompt by prompt."""

from contextlib import contextmanager

import lastword
from lastword.decoding import layout

# Unequal prompts and, with most policies, unequal horizons: rows open their blocks out of step.
PROMPTS = [
    [293, 170, 195, 181, 26, 70, 351, 346, 298],
    [7],
    [1, 251, 110, 248, 72],
    [4, 4],
    [9, 8, 7],
    [300],
]


@contextmanager
def shapes(*, fixed, on="cpu"):
    """Decode in fixed shapes, or not, whatever the device; on a canvas as small as the answers allow."""
    before = layout.DEVICES, layout.MIN_COLUMNS
    layout.DEVICES, layout.MIN_COLUMNS = {on} if fixed else set(), 1
    try:
        yield
    finally:
        layout.DEVICES, layout.MIN_COLUMNS = before


def steps(model, recipe, prompts=PROMPTS, *, seeds=None, **settings):
    dice = lastword.RowGenerators(range(len(prompts)) if seeds is None else seeds)
    return lastword.decode(model, prompts, recipe, generators=dice, **settings)


def answers(model, recipe, prompts=PROMPTS, **settings):
    """Of every prompt: the answer's canvas, the horizon planned, what the probes and decoding cost."""
    found = {}
    for step in steps(model, recipe, prompts, **settings):
        for done in step.finished:
            assert done.request_id not in found
            ledger = (done.horizon, done.probe_cost, done.cost)
            found[done.request_id] = (done.canvas.answer_ids(0), *ledger)
    return [found[index] for index in range(len(prompts))]


def alone(model, recipe, prompts=PROMPTS):
    """The same, each prompt in a decoding of its own."""
    return [answers(model, recipe, [prompt], seeds=[index])[0] for index, prompt in enumerate(prompts)]
