"""Accuracy of a model on held-out prompts: `python -m training.check out/models/tiny-llada-base`.

A fixed canvas of 256, one token a pass, the surest first: the setting every shortened canvas is
compared with. Decoding is the library's own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import lastword
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.evaluate.tasks import embedded_tasks
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS
from training.tasks.generators import Split

CANVAS = 256


def check(
    name: str | Path, split: Split, per_family: int, *, rows: int = 250, device: str = "auto"
) -> dict[str, float]:
    """Share of right answers by family, and their mean."""
    model = lastword.load(name, device=device)
    with TemporaryDirectory() as folder:
        records = evaluate(
            model,
            Path(name).name,
            embedded_tasks(split=split),
            Recipe.named("fixed").with_choices(length=lastword.Fixed(CANVAS)),
            Journal(Path(folder) / "check.jsonl"),
            limit=per_family,
            max_batch_size=rows,
        )
    scores = {f: [r.score for r in records if r.task == f] for f in BENCHMARKS}
    shares = {family: round(sum(mine) / len(mine), 4) for family, mine in scores.items()}
    return {**shares, "mean": round(sum(shares.values()) / len(shares), 4)}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description="Held-out accuracy on the fixed canvas.")
    parser.add_argument("model", help="an embedded model, or the folder of an exported one")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--per-family", type=int, default=100)
    parser.add_argument("--rows", type=int, default=250, help="prompts decoded at once")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    shares = check(given.model, given.split, given.per_family, rows=given.rows, device=given.device)
    asked = {"model": Path(given.model).name, "split": given.split, "per_family": given.per_family}
    print(json.dumps(asked | shares))


if __name__ == "__main__":
    main()
