"""Does the predicted length move while the answer is written? The paper's step ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastword.checks import check_whole
from lastword.decode import decode
from lastword.errors import SettingError
from lastword.eval.journal import Journal, Record
from lastword.eval.run import Layout, about, asked_of, surroundings
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
    recipe, layout = Recipe(length=length), Layout.of(model, chat=chat)
    run = about(model, name, recipe, seed=0) | {"kind": "drift"}
    asked = asked_of(run, tasks, limit, layout)
    done = journal.done()
    prompts = {key: layout.ids(s) for key, (s, _) in asked.items() if key not in done}
    order = sorted(prompts, key=lambda key: len(prompts[key]))
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        expected = _expected(model, [prompts[key] for key in batch], length, steps)
        journal.append(
            asked[key][1] | surroundings(model) | {"expected": own}
            for key, own in zip(batch, expected)
        )
    recorded = journal.done()
    return [recorded[key] for key in asked]


def _expected(
    model: Any, prompts: Sequence[list[int]], length: Survival, steps: Sequence[int]
) -> list[dict[str, float]]:
    """The expected length of each prompt by step, step 0 among them."""
    found: list[dict[str, float]] = [{} for _ in prompts]
    for step in decode(model, prompts, Recipe(length=Fixed(length.limit))):
        index = step.clock.index
        if index == 0 or index in steps:
            for own, mean in zip(found, length.read(step.prediction).mean.tolist()):
                own[str(index)] = round(mean, 4)
        if index >= max(steps):
            break
    return found
