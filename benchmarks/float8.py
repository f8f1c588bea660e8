"""What fp8 weights cost in accuracy: the same prompts and recipe with weights as stored and in fp8.

    python -m benchmarks.float8 run --per-family 100         all embedded models (a CPU, half an hour)
    python -m benchmarks.float8 run --models tiny-llada-base --per-family 2 --out out/float8.json
    python -m benchmarks.float8 table                        prints the table from the record

Weights and activations are rounded to fp8 as on a GPU. A CPU sums products in float32, where a GPU hands them
on in bfloat16.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

import lastword
from benchmarks.arms import MODELS
from lastword.engines.surroundings import surroundings
from lastword.eval import Journal, evaluate
from lastword.eval.records import Answer
from lastword.eval.tiny import TinyTask
from lastword.outside.files import write
from lastword.outside.schema import read_bytes
from lastword.paper.compare import paired_p
from lastword.recipe.names import RECIPES
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

RECORD = Path(__file__).parent / "records" / "float8.json"
Flags = Annotated[str, Field(pattern="^[01]+$", max_length=100_000)]


class Strict(BaseModel):
    """Nothing unknown is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Compared(Strict):
    """One model: a character a prompt, families in our order."""

    model: str
    stored: Flags  # right with weights as stored
    float8: Flags  # right with fp8 weights
    same: Flags  # the same text


class Record(Strict):
    """All models, and what they were asked."""

    recipe: str
    split: Literal["validation"]
    per_family: Annotated[int, Field(ge=1)]
    surroundings: dict[str, str | dict[str, str]]
    models: list[Compared]


def compared(name: str, recipe: Recipe, per_family: int, rows: int) -> Compared:
    """Both models' answers to the same prompts."""
    tasks = [TinyTask(family, "validation") for family in BENCHMARKS]
    found: list[list[Answer]] = []
    with tempfile.TemporaryDirectory() as folder:
        for weights in (None, "fp8"):
            model = lastword.load(name, device="cpu", weights=weights)
            journal = Journal(Path(folder) / f"{weights}.jsonl")
            found.append(
                evaluate(
                    model, name, tasks, recipe, journal, limit=per_family, rows=rows, timed=False
                )
            )
    stored, float8 = found
    return Compared(
        model=name,
        stored=_flags([answer.right for answer in stored]),
        float8=_flags([answer.right for answer in float8]),
        same=_flags([one.text == other.text for one, other in zip(stored, float8)]),
    )


def _flags(found: Sequence[bool]) -> str:
    return "".join("01"[flag] for flag in found)


def read(path: Path = RECORD) -> Record:
    """A record that was kept."""
    return Record.model_validate_json(read_bytes(path))


def table(record: Record) -> str:
    """A line a model and one for all: accuracy both ways, prompts won and lost, texts that are the same."""
    lines = [
        "| model | prompts | as stored | fp8 | points | won, lost | p | same text |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    own = record.models
    joined = [
        Compared(
            model="all",
            stored="".join(one.stored for one in own),
            float8="".join(one.float8 for one in own),
            same="".join(one.same for one in own),
        )
    ]
    for one in [*own, *joined]:
        stored, float8 = ([flag == "1" for flag in flags] for flags in (one.stored, one.float8))
        count = len(stored)
        won = sum(now and not then for then, now in zip(stored, float8))
        lost = sum(then and not now for then, now in zip(stored, float8))
        lines.append(
            f"| {one.model} | {count} | {100 * sum(stored) / count:.1f} | {100 * sum(float8) / count:.1f} "
            f"| {100 * (won - lost) / count:+.2f} | {won}, {lost} | {paired_p(stored, float8):.2g} "
            f"| {100 * one.same.count('1') / count:.1f}% |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse, measure or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--recipe", default="fast", choices=list(RECIPES))
    parser.add_argument("--per-family", type=int, default=100)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    if given.what == "run":
        recipe = Recipe.named(given.recipe)
        record = Record(
            recipe=given.recipe,
            split="validation",
            per_family=given.per_family,
            surroundings=surroundings(lastword.load(given.models[0], device="cpu")),
            models=[compared(name, recipe, given.per_family, given.rows) for name in given.models],
        )
        write(given.out, record.model_dump_json(indent=1) + "\n")
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
