"""`drift`: the change of the expected length while an answer is decoded (the survival paper's step ablation)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators
from lastword.engines.base import environment
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal
from lastword.evaluate.records import Drift, Identity, make_record
from lastword.evaluate.run import PromptLayout, check_counts, find_questions, run_fields
from lastword.evaluate.tasks import Task
from lastword.models.base import MaskPredictor
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int

STEPS = (2, 5, 7, 10)  # as in the survival paper
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
    max_batch_size: int = 8,
    chat: bool | None = None,
    bos: bool = False,
    recipe: Recipe = Recipe.named("paper"),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Drift]:
    """Decode each sample up to the last of `steps`; return records of the expected length at step 0 and at `steps`.

    If the record of a sample lacks one of `steps`, the sample is measured again, also at its recorded steps, and
    the record is replaced. Prompts that are too long for the whole canvas are skipped, and their number is
    logged. Only the unmask rule and the sampling of `recipe` are used, because the expected length is read from
    the whole canvas at every step.
    """
    check_counts("drift", max_batch_size, limit)
    for step in steps:
        check_int("drift", "steps", step, minimum=1)
    if not steps:
        raise SettingError("drift was given no steps; give some, such as 2, 5, 7, 10")
    slots = resolve(Recipe(length=length), model).length.traits.max_slots or model.default_max_new_tokens
    length = replace(length, limit=slots)
    if max(steps) >= slots:
        raise SettingError(
            f"drift was given step {max(steps)}, and a canvas of {slots} slots is full after {slots} steps; "
            f"give steps up to {slots - 1}, or more slots"
        )
    recipe = Recipe(length=length, unmask=recipe.unmask, sampling=recipe.sampling)
    layout = PromptLayout.of(model, chat=chat, bos=bos)
    shared = run_fields(model, name, recipe, seed=0) | {"kind": "drift"}
    questions = find_questions(shared, [(task, task.samples(limit)) for task in tasks], layout)
    prompts = _select_fitting(model, {key: layout.ids(s) for key, (s, _) in questions.items()}, slots)
    with journal.writing():
        recorded = {key: {*record.steps} - {0} for key, record in _drifts(journal).items()}
        order = [key for key in prompts if not {*steps} <= recorded.get(key, set())]
        order.sort(key=lambda key: len(prompts[key]))
        done = len(prompts) - len(order)
        progress(done, len(prompts))
        for first in range(0, len(order), max_batch_size):
            batch = order[first : first + max_batch_size]
            batch_steps = {*steps}.union(*(recorded.get(key, set()) for key in batch))
            lengths = _expected_lengths(model, [prompts[key] for key in batch], length, recipe, batch_steps)
            journal.append(
                make_record(questions[key][1] | environment(model) | {"expected": expected})
                for key, expected in zip(batch, lengths)
            )
            done += len(batch)
            progress(done, len(prompts))
    drifts = _drifts(journal)
    return [drifts[key] for key in prompts]


def _drifts(journal: Journal) -> dict[Identity, Drift]:
    return {key: record for key, record in journal.by_identity().items() if isinstance(record, Drift)}


def _select_fitting(model: MaskPredictor, prompts: dict[Identity, list[int]], slots: int) -> dict[Identity, list[int]]:
    """Return the prompts after which `slots` slots fit into the context length; raise SettingError if none do."""
    fitting = {key: ids for key, ids in prompts.items() if len(ids) + slots <= model.max_seq_len}
    skipped = len(prompts) - len(fitting)
    if prompts and not fitting:
        raise SettingError(
            f"none of {skipped} prompts leaves room for {slots} slots in the context length of "
            f"{model.max_seq_len}; use at most {model.max_seq_len - min(map(len, prompts.values()))} slots"
        )
    if skipped:
        _LOG.warning("%d of %d prompts leave no room for %d slots", skipped, len(prompts), slots)
    return fitting


def _expected_lengths(
    model: MaskPredictor, prompts: Sequence[list[int]], length: Survival, recipe: Recipe, steps: set[int]
) -> list[dict[str, float]]:
    """Return the expected lengths of each prompt's answer by step number as text, step 0 included."""
    expected: list[dict[str, float]] = [{} for _ in prompts]
    recipe = replace(recipe, length=Fixed(length.limit))
    generators = RowGenerators([0] * len(prompts), model.device)
    for step in decode(model, prompts, recipe, generators=generators):
        number = int(step.clock.step[0])  # the same for all rows
        if number == 0 or number in steps:
            for row, mean in zip(expected, length.interpret(step.prediction).mean.tolist()):
                row[str(number)] = round(mean, 4)
        if number >= max(steps):
            break
    return expected
