"""Decode prompts in static or dynamic shapes and collect the result of every prompt."""

from contextlib import contextmanager

import lastword
from lastword.decoding import step as layout

# Unequal prompts and, with most policies, unequal horizons: rows open their blocks out of step.
PROMPTS = [[293, 170, 195, 181, 26, 70, 351, 346, 298], [7], [1, 251, 110, 248, 72], [4, 4], [9, 8, 7], [300]]


@contextmanager
def static_shapes(enabled=True, device="cpu"):
    """Force static or dynamic shapes, on a canvas as small as the answers allow."""
    before = layout.STATIC_DEVICES, layout.MIN_COLUMNS
    layout.STATIC_DEVICES, layout.MIN_COLUMNS = {device} if enabled else set(), 1
    try:
        yield
    finally:
        layout.STATIC_DEVICES, layout.MIN_COLUMNS = before


def steps(model, recipe, prompts=PROMPTS, *, seeds=None, **settings):
    dice = lastword.RowGenerators(range(len(prompts)) if seeds is None else seeds)
    return lastword.decode(model, prompts, recipe, generators=dice, **settings)


def answers(model, recipe, prompts=PROMPTS, **settings):
    """Return the answer canvas, planned horizon and costs of every prompt."""
    found = {}
    for step in steps(model, recipe, prompts, **settings):
        for done in step.finished:
            assert done.request_id not in found
            ledger = (done.horizon, done.probe_cost, done.cost)
            found[done.request_id] = (done.canvas.answer_ids(0), *ledger)
    return [found[index] for index in range(len(prompts))]


def alone(model, recipe, prompts=PROMPTS):
    """Return the same, with every prompt decoded on its own."""
    return [answers(model, recipe, [prompt], seeds=[index])[0] for index, prompt in enumerate(prompts)]
