"""The records of the study as they are kept, read once: by model and arm, and against the fixed canvas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.arms import MODELS, recipe_of
from benchmarks.study import RECORDS
from lastword.evaluate.archive import ENDING, arms_in
from lastword.evaluate.journal import read_records
from lastword.evaluate.records import Answer, Record
from lastword.paper.compare import paired_p
from lastword.paper.overview import spent
from lastword.paper.pairing import on_shared
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

# Seconds, measured alone on a machine: a prompt at a time as in the paper, and batches of 500 rows.
SPEED = RECORDS.parent / "speed"
BATCH_SPEED = RECORDS.parent / "batch-speed"
PARTS = RECORDS.parent / "parts"
FIXED = "fixed 256"  # the arm that others are held against


@cache
def records_in(path: Path) -> list[Record]:
    """The records of a file, read once."""
    return read_records(path)


_arms_in = cache(arms_in)


def study() -> list[Record]:
    """Every kept record of the study on test prompts, models in our order."""
    paths = [path for model in MODELS for path in sorted((RECORDS / model / "test").iterdir())]
    return [record for path in paths for record in records_in(path)]


def timed(folder: Path) -> list[Answer]:
    """The records of one of the folders of seconds."""
    found = [record for path in sorted(folder.rglob(f"*{ENDING}")) for record in records_in(path)]
    return [record for record in found if isinstance(record, Answer)]


def answers_of(model: str, recipe: Recipe, split: str = "test", folder: Path = RECORDS) -> list[Answer]:
    """The answers of one arm, none if it is not kept."""
    path = _arms_in(folder / model / split).get(("answer", recipe))
    found = records_in(path) if path else []
    return [record for record in found if isinstance(record, Answer)]


def accuracy(model: str) -> dict[str, float]:
    """Share of right answers on the fixed canvas of 256, one token a pass, by family."""
    records = answers_of(model, recipe_of(FIXED))
    scores = {f: [r.score for r in records if r.task == f] for f in BENCHMARKS}
    return {family: sum(mine) / len(mine) for family, mine in scores.items()}


def asked(model: str) -> int:
    """How many prompts of each family that is."""
    return len(answers_of(model, recipe_of(FIXED))) // len(BENCHMARKS)


@dataclass(frozen=True)
class Against:
    """An arm against the fixed canvas on the same prompts."""

    points: float
    p: float
    columns: float


def against_fixed(model: str, arm: str, split: str = "test") -> Against | None:
    """None where the arm was not asked all that the fixed canvas was."""
    base, own = on_shared(*(answers_of(model, recipe_of(name), split) for name in (FIXED, arm)))
    if not own or len(own) < len(answers_of(model, recipe_of(FIXED), split)):
        return None
    right = [[r.right for r in records] for records in (base, own)]
    return Against(
        100 * (sum(right[1]) - sum(right[0])) / len(own),
        paired_p(*right),
        spent(own, "columns") / spent(base, "columns"),
    )
