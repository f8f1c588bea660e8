"""`drift`: does the predicted length move while the answer is written? The paper's step ablation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.engines.base import environment
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal
from lastword.evaluate.records import Drift, Identity, record_of
from lastword.evaluate.run import Layout, about, asked_of, check_counts
from lastword.evaluate.task import Task
from lastword.models.base import MaskPredictor
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int

STEPS = (2, 5, 7, 10)  # the paper's
_LOG = logging.getLogger(__name__)


def drift(
    model: MaskPredictor,
    name: str,
    tasks: Sequence[Task],
    journal: Journal,
    *,
    length: Survival = Survival(),
    steps: Sequence[int] = STEPS,
    limit: int | None = None,
    rows: int = 8,
    chat: bool | None = None,
    bos: bool = False,
    recipe: Recipe = Recipe.named("paper"),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Drift]:
    """The expected length read from the first pass and from later ones of the same decoding.

    A record's `expected` holds a number for step 0 and for each of `steps`. Decoding stops after the
    last of them: a few passes on the long canvas, whatever the answer. A record that lacks a step is
    measured again, the steps it has included, and replaced. A prompt that leaves no room for the whole
    canvas is left out (see `room`) and counted in the log. Of `recipe` rule and sampling are taken: a
    later step is read off the whole canvas, so that blocks, caches and early commits have no part in it.
    """
    check_counts("drift", rows, limit)
    for later in steps:
        check_int("drift", "steps", later, minimum=1)
    if not steps:
        raise SettingError("drift was given no steps; give some, such as 2, 5, 7, 10")
    slots = resolve(Recipe(length=length), model).length.traits.max_slots or model.default_max_new_tokens
    length = replace(length, limit=slots)
    if max(steps) >= slots:
        raise SettingError(
            f"drift was given step {max(steps)} of a canvas of {slots} slots, which is full after "
            f"as many passes; give steps up to {slots - 1}, or more slots"
        )
    recipe = Recipe(length=length, unmask=recipe.unmask, sampling=recipe.sampling)
    layout = Layout.of(model, chat=chat, bos=bos)
    run = about(model, name, recipe, seed=0) | {"kind": "drift"}
    asked = asked_of(run, [(task, task.samples(limit)) for task in tasks], layout)
    prompts = _fitting(model, {key: layout.ids(s) for key, (s, _) in asked.items()}, slots)
    with journal.writing():
        before = {key: {*record.steps} - {0} for key, record in _drifts(journal).items()}
        lacking = [key for key in prompts if not {*steps} <= before.get(key, set())]
        order = sorted(lacking, key=lambda key: len(prompts[key]))
        progress(len(prompts) - len(order), len(prompts))
        for first in range(0, len(order), rows):
            batch = order[first : first + rows]
            wanted = {*steps}.union(*(before.get(key, set()) for key in batch))
            expected = _expected(model, [prompts[key] for key in batch], length, recipe, wanted)
            journal.append(
                record_of(asked[key][1] | environment(model) | {"expected": own})
                for key, own in zip(batch, expected)
            )
            progress(len(prompts) - len(order) + first + len(batch), len(prompts))
    recorded = _drifts(journal)
    return [recorded[key] for key in prompts]


def _drifts(journal: Journal) -> dict[Identity, Drift]:
    return {key: record for key, record in journal.done().items() if isinstance(record, Drift)}


def _fitting(
    model: MaskPredictor, prompts: dict[Identity, list[int]], slots: int
) -> dict[Identity, list[int]]:
    """The prompts that leave the model room for so many slots."""
    fit = {key: ids for key, ids in prompts.items() if len(ids) + slots <= model.max_seq_len}
    left_out = len(prompts) - len(fit)
    if prompts and not fit:
        raise SettingError(
            f"none of {left_out} prompts leaves {slots} of the model's {model.max_seq_len} positions free; "
            f"give fewer slots: {model.max_seq_len - min(map(len, prompts.values()))} or less"
        )
    if left_out:
        _LOG.warning("%d of %d prompts leave no room for %d slots", left_out, len(prompts), slots)
    return fit


def _expected(
    model: MaskPredictor,
    prompts: Sequence[list[int]],
    length: Survival,
    recipe: Recipe,
    steps: set[int],
) -> list[dict[str, float]]:
    """The expected length of each prompt by step, step 0 among them."""
    found: list[dict[str, float]] = [{} for _ in prompts]
    canvas, dice = (
        replace(recipe, length=Fixed(length.limit)),
        RowGenerators([0] * len(prompts), model.device),
    )
    for step in decode(model, prompts, canvas, generators=dice):
        index = int(step.clock.step[0])  # rows begin together
        if index == 0 or index in steps:
            for own, mean in zip(found, length.interpret(step.prediction).mean.tolist()):
                own[str(index)] = round(mean, 4)
        if index >= max(steps):
            break
    return found
