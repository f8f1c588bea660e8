"""What the kept records say, as one JSON object: `python -m tests.benchmarks.summary`.

In a process of its own, for half a million records take long where the types of every call are checked.
"""

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import coverage, kept, pages
from benchmarks.arms import BASE, GROUPS, MODELS, UNSEEN, recipe_of
from lastword.evaluate.records import Answer

PEERS = ("DAEDAL, one token a pass", "rho-EOS, one token a pass")


def summary() -> dict[str, object]:
    """Everything the tests of the records ask for."""
    compared = {
        "validation": GROUPS["choose"].arms,
        "test": ("auto, grow, stop", "survival", *PEERS),
        UNSEEN: ("auto, grow, stop", "survival", *PEERS),
    }
    return {
        "stale": [p.name for p in pages.PAGES if pages.written(p.read_text()) != p.read_text()],
        "weights": {m: weights(m) for m in MODELS},
        "accuracy": {m: kept.accuracy(m) for m in MODELS},
        "asked": {m: kept.asked(m) for m in MODELS},
        "against_fixed": {
            split: {arm: [against(m, arm, split) for m in MODELS] for arm in arms} for split, arms in compared.items()
        },
        "unseen": {
            f"{arm}, {model}": len(kept.answers_of(model, recipe_of(arm), UNSEEN))
            for name in ("confirm", "peers")
            for arm in GROUPS[name].arms
            for model in GROUPS[name].models
        },
        "batches": {
            f"{arm}, {model}": batches(kept.answers_of(model, recipe_of(arm), folder=kept.BATCH_SPEED))
            for arm in GROUPS["speed"].arms
            for model in MODELS
        },
        "parts": {
            f"{arm}, {model}": batches(kept.answers_of(model, recipe_of(arm), folder=kept.PARTS))
            for arm in GROUPS["parts"].arms
            for model in BASE
        },
        "covered": list(covered()),
    }


def against(model: str, arm: str, split: str) -> dict[str, float] | None:
    """An arm against the fixed canvas."""
    found = kept.against_fixed(model, arm, split)
    return found and asdict(found)


def weights(model: str) -> list[str]:
    """What the weights of the study's records are known by."""
    return sorted({record.weights for record in kept.study() if record.model == model})


def batches(records: Sequence[Answer]) -> list[list[object]]:
    """How many prompts of each task were asked, from the first on, so many at once."""
    tasks = dict.fromkeys(record.task for record in records)
    mine = {task: [r for r in records if r.task == task] for task in tasks}
    return [
        [task, len(own), [r.index for r in own] == list(range(len(own))), sorted({r.rows for r in own})]
        for task, own in mine.items()
    ]


def covered():
    """The coverage wanted and measured, and the prompts, of each model, family and bound."""
    for summary in coverage.read().values():
        for row in (row for row in summary["covered"] if row["truth"] == "own"):
            for family, share in row["bounds"]["a factor each"]["families"].items():
                yield family, row["coverage"], share, summary["prompts"][family]


if __name__ == "__main__":
    gc.disable()  # nothing is freed before the end
    print(json.dumps(summary()))
