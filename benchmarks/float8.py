"""Accuracy with fp8 weights: the same prompts and recipe with weights as stored and in fp8.

    python -m benchmarks.float8 run --per-family 100         measure all embedded models (a CPU, half an hour)
    python -m benchmarks.float8 run --models tiny-llada-base --per-family 2 --out out/float8.json
    python -m benchmarks.float8 table                        print the table of the record

Weights and activations are rounded to fp8 as on a GPU. A CPU accumulates products in float32; a GPU returns
them in bfloat16.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lastword
from benchmarks.paired import Comparison, PairedResult
from lastword.evaluate import Journal
from lastword.evaluate.records import Answer
from lastword.evaluate.run import evaluate
from lastword.evaluate.tasks import EmbeddedTask
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

RECORD = Path(__file__).parent / "records" / "float8.json"


def compare(name: str, recipe: Recipe, per_family: int, batch_size: int) -> PairedResult:
    """Compare the answers of both models to the same prompts."""
    tasks = [EmbeddedTask(family, "validation") for family in BENCHMARKS]
    results: list[list[Answer]] = []
    with tempfile.TemporaryDirectory() as folder:
        for quantization in (None, "fp8"):
            model = lastword.load(name, device="cpu", quantization=quantization)
            journal = Journal(Path(folder) / f"{quantization}.jsonl")
            results.append(
                evaluate(model, name, tasks, recipe, journal, limit=per_family, max_batch_size=batch_size, timed=False)
            )
    stored, float8 = ([(answer.correct, answer.text or "") for answer in answers] for answers in results)
    return PairedResult.of(name, stored, float8)


FLOAT8 = Comparison(RECORD, "stored", "fp8", compare)

if __name__ == "__main__":
    FLOAT8.main(__doc__ or "")
