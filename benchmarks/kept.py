"""Access to the kept records: the arms of a folder by model, accuracy, and comparisons with the fixed canvas."""

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

# Timed records, each from one run on a machine without other work.
SPEED = RECORDS.parent / "speed"  # one prompt at a time on a CPU core
GPU_SPEED = RECORDS.parent / "gpu-speed"  # one prompt at a time on a GPU, as in the paper
BATCH_SPEED = RECORDS.parent / "batch-speed"  # batches on a GPU
PARTS = RECORDS.parent / "parts"
FIXED = "fixed 256"  # the arm that others are compared with


arms_of = cache(read_arms)  # by folder and model


def study() -> list[Record]:
    """Return every kept record of the study on test prompts, models in the order of MODELS."""
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
        for model in MODELS
        for arm in arms_of(folder, model).values()
        for record in arm
        if isinstance(record, Answer)
    ]


def answers_of(model: str, recipe: Recipe, split: str = "test", folder: Path = RECORDS) -> list[Answer]:
    """Return the answers of one arm, or an empty list if it is not kept."""
    arm = arms_of(folder, model).get(("answer", split, recipe), [])
    return [record for record in arm if isinstance(record, Answer)]


def accuracy(model: str) -> dict[str, float]:
    """Return the accuracy on the fixed canvas of 256 slots, one token per forward pass, by family."""
    records = answers_of(model, recipe_of(FIXED))
    scores = {family: [record.score for record in records if record.task == family] for family in BENCHMARKS}
    return {family: sum(values) / len(values) for family, values in scores.items()}


def prompts_per_family(model: str) -> int:
    """Return the number of test prompts per family in the study."""
    return len(answers_of(model, recipe_of(FIXED))) // len(BENCHMARKS)


@dataclass(frozen=True)
class FixedComparison:
    """An arm compared with the fixed canvas on the same prompts."""

    points: float  # difference in accuracy, in percent
    p: float  # exact paired test
    tokens: float  # tokens computed as a share of the fixed canvas


def compare_with_fixed(model: str, arm: str, split: str = "test") -> FixedComparison | None:
    """Compare an arm with the fixed canvas; None if the arm lacks prompts of the fixed canvas."""
    fixed = answers_of(model, recipe_of(FIXED), split)
    base, other = on_shared_samples(fixed, answers_of(model, recipe_of(arm), split))
    if not other or len(other) < len(fixed):
        return None
    correct = [[record.correct for record in records] for records in (base, other)]
    return FixedComparison(
        100 * (sum(correct[1]) - sum(correct[0])) / len(other),
        paired_p(*correct),
        total_cost(other, "tokens_computed") / total_cost(base, "tokens_computed"),
    )
