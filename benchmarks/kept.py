"""The kept records of the study, read once: by model and arm, and against the fixed canvas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.arm_files import read_arms
from benchmarks.arms import MODELS, recipe_of
from benchmarks.study import RECORDS
from lastword.evaluate.records import Answer, Record
from lastword.evaluate.tables import on_shared_samples, paired_p, total_cost
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

# Seconds, measured alone on a machine: a prompt at a time as in the paper, and batches of 500 rows.
SPEED = RECORDS.parent / "speed"
BATCH_SPEED = RECORDS.parent / "batch-speed"
PARTS = RECORDS.parent / "parts"
FIXED = "fixed 256"  # the arm that others are held against


arms_of = cache(read_arms)  # by folder and model


def study() -> list[Record]:
    """Return every kept record of the study on test prompts, models in our order."""
    return [
        record
        for model in MODELS
        for (_, split, _), arm in arms_of(RECORDS, model).items()
        if split == "test"
        for record in arm
    ]


def timed(folder: Path) -> list[Answer]:
    """Return the answers of a folder of timed arms."""
    return [
        record
        for model in sorted(MODELS)
        for arm in arms_of(folder, model).values()
        for record in arm
        if isinstance(record, Answer)
    ]


def answers_of(model: str, recipe: Recipe, split: str = "test", folder: Path = RECORDS) -> list[Answer]:
    """Return the answers of one arm, or none if it is not kept."""
    arm = arms_of(folder, model).get(("answer", split, recipe), [])
    return [record for record in arm if isinstance(record, Answer)]


def accuracy(model: str) -> dict[str, float]:
    """Share of right answers on the fixed canvas of 256, one token a pass, by family."""
    records = answers_of(model, recipe_of(FIXED))
    scores = {f: [r.score for r in records if r.task == f] for f in BENCHMARKS}
    return {family: sum(mine) / len(mine) for family, mine in scores.items()}


def asked(model: str) -> int:
    """Return the number of prompts per family."""
    return len(answers_of(model, recipe_of(FIXED))) // len(BENCHMARKS)


@dataclass(frozen=True)
class Against:
    """An arm against the fixed canvas on the same prompts."""

    points: float
    p: float
    columns: float


def against_fixed(model: str, arm: str, split: str = "test") -> Against | None:
    """None where the arm was not asked all that the fixed canvas was."""
    base, own = on_shared_samples(*(answers_of(model, recipe_of(name), split) for name in (FIXED, arm)))
    if not own or len(own) < len(answers_of(model, recipe_of(FIXED), split)):
        return None
    right = [[r.correct for r in records] for records in (base, own)]
    return Against(
        100 * (sum(right[1]) - sum(right[0])) / len(own),
        paired_p(*right),
        total_cost(own, "tokens_computed") / total_cost(base, "tokens_computed"),
    )
