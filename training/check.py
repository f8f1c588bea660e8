"""Measure a model's accuracy on held-out prompts: `python -m training.check out/models/tiny-llada-base`.

The recipe is the baseline of all comparisons: a fixed canvas of 256 slots, and one token per forward pass, the most
confident one.
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
    """Return the share of correct answers per family, and the mean of the shares."""
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
    scores_by_family = {f: [r.score for r in records if r.task == f] for f in BENCHMARKS}
    shares = {family: round(sum(scores) / len(scores), 4) for family, scores in scores_by_family.items()}
    return {**shares, "mean": round(sum(shares.values()) / len(shares), 4)}


def main() -> None:
    """Parse the arguments and print the accuracies as one JSON line."""
    parser = argparse.ArgumentParser(description="Held-out accuracy on the fixed canvas.")
    parser.add_argument("model", help="an embedded model, or the folder of an exported model")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--per-family", type=int, default=100)
    parser.add_argument("--rows", type=int, default=250, help="number of prompts decoded at the same time")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    shares = check(args.model, args.split, args.per_family, rows=args.rows, device=args.device)
    settings = {"model": Path(args.model).name, "split": args.split, "per_family": args.per_family}
    print(json.dumps(settings | shares))


if __name__ == "__main__":
    main()
