"""A summary of the kept records as one JSON object: `python -m tests.benchmarks.summary`.

The summary is computed in a separate process, because half a million records take long where the types of every
call are checked.
"""

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from benchmarks import coverage, kept, pages
from benchmarks.arms import BASE, GROUPS, MODELS, UNSEEN, recipe_of
from lastword.evaluate.records import Answer

PEERS = ("DAEDAL, one token per pass", "rho-EOS, one token per pass")
TIMED = {folder.name: folder for folder in (kept.SPEED, kept.GPU_SPEED, kept.BATCH_SPEED)}


def summary() -> dict[str, object]:
    """Return everything that the tests of the records need."""
    compared = {
        "validation": GROUPS["choose"].arms,
        "test": ("auto, grow, stop", "survival", *PEERS),
        UNSEEN: ("auto, grow, stop", "survival", *PEERS),
    }
    return {
        "stale": [page.name for page in pages.PAGES if is_stale(page.read_text())],
        "weights": {model: weights(model) for model in MODELS},
        "accuracy": {model: kept.accuracy(model) for model in MODELS},
        "prompts_per_family": {model: kept.prompts_per_family(model) for model in MODELS},
        "against_fixed": {
            split: {arm: [compare_with_fixed(model, arm, split) for model in MODELS] for arm in arms}
            for split, arms in compared.items()
        },
        "unseen": {
            f"{arm}, {model}": len(kept.answers_of(model, recipe_of(arm), UNSEEN))
            for name in ("confirm", "peers")
            for arm in GROUPS[name].arms
            for model in GROUPS[name].models
        },
        "timed": {
            name: {
                f"{arm}, {model}": batches(kept.answers_of(model, recipe_of(arm), folder=folder))
                for arm in GROUPS["speed"].arms
                for model in MODELS
            }
            for name, folder in TIMED.items()
        },
        "parts": {
            f"{arm}, {model}": batches(kept.answers_of(model, recipe_of(arm), folder=kept.PARTS))
            for arm in GROUPS["parts"].arms
            for model in BASE
        },
        "coverage": list(coverage_rows()),
    }


def is_stale(page: str) -> bool:
    """Return whether a page has a table that is unknown or differs from the records."""
    names = {name for _, name, _ in pages.PLACE.findall(page)}
    return not names <= pages.TABLES.keys() or pages.written(page) != page


def compare_with_fixed(model: str, arm: str, split: str) -> dict[str, float] | None:
    """Return the comparison of an arm with the fixed canvas."""
    comparison = kept.compare_with_fixed(model, arm, split)
    return comparison and asdict(comparison)


def weights(model: str) -> list[str]:
    """Return the fingerprints of the weights in the records of the study."""
    return sorted({record.weights for record in kept.study() if record.model == model})


def batches(records: Sequence[Answer]) -> list[list[object]]:
    """Return for each task: number of prompts, whether they are the first ones, batch sizes, and whether all are timed.

    The batch size of a record is the number of rows that were decoded at the same time.
    """
    tasks = dict.fromkeys(record.task for record in records)
    by_task = {task: [record for record in records if record.task == task] for task in tasks}
    return [
        [
            task,
            len(of_task),
            [record.index for record in of_task] == list(range(len(of_task))),
            sorted({record.rows for record in of_task}),
            all(record.share_of_time for record in of_task),
        ]
        for task, of_task in by_task.items()
    ]


def coverage_rows() -> Iterator[tuple[str, float, float, int]]:
    """Yield family, wanted and measured coverage, and number of prompts, for each model and bound."""
    for results in coverage.read().values():
        for row in (row for row in results["covered"] if row["truth"] == "own"):
            for family, share in row["bounds"]["a factor each"]["families"].items():
                yield family, row["coverage"], share, results["prompts"][family]


if __name__ == "__main__":
    gc.disable()  # nothing is freed before the end
    print(json.dumps(summary()))
