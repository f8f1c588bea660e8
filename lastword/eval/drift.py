"""Does the predicted length move while the answer is written? The paper's step ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lastword.checks import check_whole
from lastword.decode import decode
from lastword.errors import SettingError
from lastword.eval.journal import Journal, Record, identity
from lastword.eval.run import about, asked_of, in_batches, surroundings
from lastword.eval.task import Task
from lastword.length import Fixed, Survival
from lastword.recipe import Recipe

STEPS = (2, 5, 7, 10)  # the paper's


def drift(
    model: Any,
    name: str,
    tasks: Sequence[Task],
    journal: Journal,
    *,
    length: Survival = Survival(),
    steps: Sequence[int] = STEPS,
    limit: int | None = None,
    rows: int = 8,
    chat: bool | None = None,
) -> list[Record]:
    """The expected length read from the first pass and from later ones of the same decoding.

    A record's `expected` holds a number for step 0 and for each of `steps`. Decoding stops after the
    last of them: a few passes on the long canvas, whatever the answer.
    """
    for later in steps:
        check_whole("drift", "steps", later, least=1)
    if not steps:
        raise SettingError("drift was given no steps; give some, such as 2, 5, 7, 10")
    recipe = Recipe(length=length)
    run = about(model, name, recipe, seed=0) | {"kind": "drift"}
    asked = {identity(run | asked_of(s)): s for task in tasks for s in task.samples(limit)}
    done = journal.done()
    left = [sample for key, sample in asked.items() if key not in done]
    long = replace(recipe, length=Fixed(length.limit))
    for batch, prompts in in_batches(model, left, rows, chat):
        expected: list[dict[str, float]] = [{} for _ in batch]
        for step in decode(model, prompts, long):
            index = step.clock.index
            if index == 0 or index in steps:
                means = length.read(step.prediction).mean.tolist()
                for own, mean in zip(expected, means):
                    own[str(index)] = round(mean, 4)
            if index >= max(steps):
                break
        journal.append(
            run | asked_of(sample) | surroundings(model) | {"expected": own}
            for sample, own in zip(batch, expected)
        )
    recorded = journal.done()
    return [recorded[key] for key in asked]
