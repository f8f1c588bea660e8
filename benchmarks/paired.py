"""Paired comparisons: the same prompts answered in two ways, with correctness and equality of each answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

import lastword
from benchmarks.arms import MODELS
from lastword.engines.base import environment
from lastword.evaluate.tables import paired_p
from lastword.io.files import write
from lastword.io.schema import read_bytes
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES

Flags = Annotated[str, Field(pattern="^[01]+$", max_length=100_000)]
ScoredText = tuple[bool, str]  # whether an answer is correct, and its text


class Strict(BaseModel):
    """The base class of records, which rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PairedResult(Strict):
    """The results of a model: a character per prompt, in the order of families."""

    model: str
    before: Flags  # correct the first way
    after: Flags  # correct the second way
    same: Flags  # equal texts

    @classmethod
    def of(cls, model: str, before: Sequence[ScoredText], after: Sequence[ScoredText]) -> PairedResult:
        """Compare answers to the same prompts, in the same order."""
        return cls(
            model=model,
            before=_flags([correct for correct, _ in before]),
            after=_flags([correct for correct, _ in after]),
            same=_flags([first[1] == second[1] for first, second in zip(before, after, strict=True)]),
        )


class Record(Strict):
    """The results of all models, with the recipe and the prompts."""

    recipe: str
    split: Literal["validation"]
    per_family: Annotated[int, Field(ge=1)]
    # Older records have the second name.
    environment: Annotated[
        dict[str, str | dict[str, str]], Field(validation_alias=AliasChoices("environment", "surroundings"))
    ]
    models: list[PairedResult]


@dataclass(frozen=True)
class Comparison:
    """Two ways to answer, their titles, and the path of the kept record."""

    path: Path
    before: str
    after: str
    # Arguments: name of the model, recipe, prompts per family, batch size
    compare: Callable[[str, Recipe, int, int], PairedResult]

    def read(self, path: Path | None = None) -> Record:
        """Return the kept record, or the one in another file."""
        return Record.model_validate_json(read_bytes(path or self.path))

    def table(self, record: Record | None = None) -> str:
        """Return a row per model and one for all: accuracy both ways, prompts won and lost, and equal texts."""
        results = (record or self.read()).models
        lines = [
            f"| model | prompts | {self.before} | {self.after} | difference | won, lost | p | same text |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        total = PairedResult(
            model="all",
            before="".join(result.before for result in results),
            after="".join(result.after for result in results),
            same="".join(result.same for result in results),
        )
        for result in [*results, total]:
            before, after = ([flag == "1" for flag in flags] for flags in (result.before, result.after))
            count = len(before)
            won = sum(second and not first for first, second in zip(before, after))
            lost = sum(first and not second for first, second in zip(before, after))
            lines.append(
                f"| {result.model} | {count} | {100 * sum(before) / count:.1f} | {100 * sum(after) / count:.1f} "
                f"| {100 * (won - lost) / count:+.2f} | {won}, {lost} | {paired_p(before, after):.2g} "
                f"| {100 * result.same.count('1') / count:.1f}% |"
            )
        return "\n".join(lines)

    def main(self, description: str) -> None:
        """Run the command line: measure and write a record, or print the table of one."""
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        parser.add_argument("command", choices=["run", "table"])
        parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
        parser.add_argument("--recipe", default="fast", choices=list(RECIPES))
        parser.add_argument("--per-family", type=int, default=100)
        parser.add_argument("--batch-size", type=int, default=16, help="prompts decoded at the same time")
        parser.add_argument("--out", type=Path, default=self.path)
        options = parser.parse_args()
        if options.command == "run":
            recipe = Recipe.named(options.recipe)
            record = Record(
                recipe=options.recipe,
                split="validation",
                per_family=options.per_family,
                environment=environment(lastword.load(options.models[0], device="cpu")),
                models=[self.compare(name, recipe, options.per_family, options.batch_size) for name in options.models],
            )
            write(options.out, record.model_dump_json(indent=1) + "\n")
        print(self.table(self.read(options.out)))


def _flags(values: Sequence[bool]) -> str:
    return "".join("01"[value] for value in values)
