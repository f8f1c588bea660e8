"""Paired: the same prompts answered in two ways, which of the answers are right and which are the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

import lastword
from benchmarks.arms import MODELS
from lastword.engines.base import environment
from lastword.evaluate.tables import paired_p
from lastword.io.files import write
from lastword.io.schema import read_bytes
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES

Flags = Annotated[str, Field(pattern="^[01]+$", max_length=100_000)]


class Strict(BaseModel):
    """Nothing unknown is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Compared(Strict):
    """The results of a model: a character per prompt, in the order of families."""

    model: str
    before: Flags  # right the first way
    after: Flags  # right the second way
    same: Flags  # the same text

    @classmethod
    def of(
        cls,
        model: str,
        before: Sequence[tuple[bool, str]],  # right, and the text
        after: Sequence[tuple[bool, str]],
    ) -> Compared:
        """Answers to the same prompts, in the same order."""
        return cls(
            model=model,
            before=_flags([right for right, _ in before]),
            after=_flags([right for right, _ in after]),
            same=_flags([one[1] == other[1] for one, other in zip(before, after, strict=True)]),
        )


class Record(Strict):
    """The results of all models, with the recipe and the prompts."""

    recipe: str
    split: Literal["validation"]
    per_family: Annotated[int, Field(ge=1)]
    surroundings: dict[str, str | dict[str, str]]
    models: list[Compared]


@dataclass(frozen=True)
class Comparison:
    """Two ways to answer, what they are called, and where their record is kept."""

    path: Path
    before: str
    after: str
    # A model's name, the recipe, prompts of a family, and rows at once
    compare: Callable[[str, Recipe, int, int], Compared]

    def read(self, path: Path | None = None) -> Record:
        """The record that is kept, or another."""
        return Record.model_validate_json(read_bytes(path or self.path))

    def table(self, record: Record | None = None) -> str:
        """Return a line per model and one for all: accuracy both ways, prompts won and lost, texts that are equal."""
        own = (record or self.read()).models
        lines = [
            f"| model | prompts | {self.before} | {self.after} | points | won, lost | p | same text |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        joined = Compared(
            model="all",
            before="".join(one.before for one in own),
            after="".join(one.after for one in own),
            same="".join(one.same for one in own),
        )
        for one in [*own, joined]:
            then, now = ([flag == "1" for flag in flags] for flags in (one.before, one.after))
            count = len(then)
            won = sum(is_right and not was for was, is_right in zip(then, now))
            lost = sum(was and not is_right for was, is_right in zip(then, now))
            lines.append(
                f"| {one.model} | {count} | {100 * sum(then) / count:.1f} | {100 * sum(now) / count:.1f} "
                f"| {100 * (won - lost) / count:+.2f} | {won}, {lost} | {paired_p(then, now):.2g} "
                f"| {100 * one.same.count('1') / count:.1f}% |"
            )
        return "\n".join(lines)

    def main(self, about: str) -> None:
        """Parse, measure or print."""
        parser = argparse.ArgumentParser(description=about.splitlines()[0])
        parser.add_argument("what", choices=["run", "table"])
        parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
        parser.add_argument("--recipe", default="fast", choices=list(RECIPES))
        parser.add_argument("--per-family", type=int, default=100)
        parser.add_argument("--rows", type=int, default=16)
        parser.add_argument("--out", type=Path, default=self.path)
        given = parser.parse_args()
        if given.what == "run":
            recipe = Recipe.named(given.recipe)
            record = Record(
                recipe=given.recipe,
                split="validation",
                per_family=given.per_family,
                surroundings=environment(lastword.load(given.models[0], device="cpu")),
                models=[self.compare(name, recipe, given.per_family, given.rows) for name in given.models],
            )
            write(given.out, record.model_dump_json(indent=1) + "\n")
        print(self.table(self.read(given.out)))


def _flags(found: Sequence[bool]) -> str:
    return "".join("01"[flag] for flag in found)
