"""The shortened tables of docs/measured/paper-tables.md; `python -m benchmarks.paper` prints the complete ones.

The paper's Tables 1 to 3 are about base models, so base models have a row per task and instruct models a row
over all tasks. Tables 4 and 5 have a row per model. Table 6 has a row per task for LLaDA's base model only, for
which the paper has values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.arms import BASE
from benchmarks.paper.tables import (
    Arm,
    BenchmarkArms,
    PaperTable,
    accuracy,
    arms_of,
    beyond,
    daedal_accuracy,
    daedal_speed,
    drift,
    fixed_mean,
    speed,
)
from lastword.evaluate.records import Record

ALL_TASKS = "all tasks"


def page_tables(records: Sequence[Record], timed: Sequence[Record]) -> list[PaperTable]:
    """Return the shortened tables; seconds are taken from `timed`."""
    arms, timed_arms = arms_of(records), arms_of(timed)
    by_task = [task for task in arms if task.subject == BASE[0]]
    return [
        speed(_merge_instruct(timed_arms)).without("n"),
        accuracy(_merge_instruct(arms)).without("n"),
        fixed_mean(_merge_instruct(arms)).without("n"),
        daedal_speed(_merge_all(timed_arms)).without("task", "n", "paper: w/o, DAEDAL, survival"),
        daedal_accuracy(_merge_all(arms)).without("task", "n", "paper: w/o, DAEDAL, survival"),
        _shorten_drift(drift([*by_task, *_merge_all([task for task in arms if task.subject != BASE[0]])])),
        _shorten_beyond(beyond(arms)),
    ]


def _merge_instruct(every: Sequence[BenchmarkArms]) -> list[BenchmarkArms]:
    """Return the arms of base models by task, and those of each instruct model over all tasks."""
    return [
        *(arms for arms in every if arms.subject in BASE),
        *_merge_all([arms for arms in every if arms.subject not in BASE]),
    ]


def _merge_all(every: Sequence[BenchmarkArms]) -> list[BenchmarkArms]:
    """Return the arms of each model over all tasks."""
    return [
        merge_tasks([arms for arms in every if arms.subject == subject])
        for subject in dict.fromkeys(arms.subject for arms in every)
    ]


def merge_tasks(tasks: Sequence[BenchmarkArms]) -> BenchmarkArms:
    """Return the arms that all tasks of a model have, with the records of all tasks."""
    shared_slots = set.intersection(*(set(arms.canvases) for arms in tasks))
    return BenchmarkArms(
        tasks[0].subject,
        ALL_TASKS,
        fixed=_merge([arms.fixed for arms in tasks]),
        survival=_merge([arms.survival for arms in tasks]),
        daedal=_merge([arms.daedal for arms in tasks]),
        stop=_merge([arms.stop for arms in tasks]),
        default=_merge([arms.default for arms in tasks]),
        canvases={
            slots: merged
            for slots in sorted(shared_slots)
            if (merged := _merge([arms.canvases[slots] for arms in tasks])) is not None
        },
        drift=[record for arms in tasks for record in arms.drift],
    )


def _merge(arms: Sequence[Arm | None]) -> Arm | None:
    known = [arm for arm in arms if arm is not None]
    if len(known) < len(arms):
        return None
    return Arm(known[0].recipe, [record for arm in known for record in arm.records])


def _shorten_drift(table: PaperTable) -> PaperTable:
    """Return Table 6 with the first and the last step."""
    rows = []
    for *row, published in table.rows:
        steps = published.split(", ")
        rows.append([*row, f"{steps[0]}, {steps[-1]}" if published else ""])
    head = table.head.replace("steps 2, 5, 7, 10", "steps 2, 10")
    return replace(table, head=head, rows=rows).without("n", "step 5", "step 7")


def _shorten_beyond(table: PaperTable) -> PaperTable:
    """Return Table 7 with the fit of the best fixed canvas, the prediction and our default, without accuracies."""
    rows = [row for row in table.rows if row[1] in ("survival", "our default") or row[1].endswith("the best")]
    return replace(table, rows=rows).without("n", "accuracy", "difference", "p", "forward passes")
