"""Seconds of whole recipes on the embedded models: the same prompts, engine and run for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import lastword
from lastword.bench.meter import Meter
from lastword.bench.record import Line
from lastword.errors import SettingError
from lastword.generation import Generation
from lastword.length import Fixed, Survival
from lastword.passes import Sampling
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.unmask import EntropyBound

# Lengths that say no limit keep to the model's own canvas.
ARMS: dict[str, Recipe] = {
    "fixed": Recipe(length=Fixed()),
    "paper": Recipe(length=Survival()),
    "default": Recipe(),
    "fast": Recipe(unmask=EntropyBound(0.1)),
    "sampled": Recipe(sampling=Sampling(temperature=0.7)),
}


def recipe_lines(
    name: str, model: Any, meter: Meter, arms: Sequence[str], rows: int, slots: int | None
) -> Iterator[Line]:
    """A line per recipe: all rows handed over at once."""
    prompts = prompts_for(model, rows)
    generate: Callable[..., list[Generation]] = lastword.generate
    through = {} if slots is None else {"slots": _checked_slots(slots)}
    for arm in arms:
        answers: list[Generation] = []

        def call(recipe: Recipe = ARMS[arm], answers: list[Generation] = answers) -> None:
            answers[:] = generate(model, prompts, recipe=recipe, **through)

        timed = replace(meter, warm_up=1).median(call)
        spent = [answer.cost.passes + answer.probe_cost.passes for answer in answers]
        tokens, seconds = sum(len(answer.tokens) for answer in answers), timed.ms / 1000
        yield Line(
            line="recipes",
            case=f"{name}, {arm}",
            rows=len(answers),
            runs=timed.runs,
            ms=timed.ms / max(spent),
            seconds=seconds,
            passes=max(spent),
            tokens=tokens,
            columns=float(sum(a.cost.columns + a.probe_cost.columns for a in answers)),
            peak_mb=timed.peak_mb,
            tokens_per_second=tokens / seconds,
            tokens_per_forward=tokens / sum(spent),
        )


def prompts_for(model: Any, rows: int) -> list[Any]:
    """Validation prompts, families in turn, as the model is asked."""
    families = [load_frozen("validation", family) for family in BENCHMARKS]
    every = [example.prompt for together in zip(*families) for example in together]
    if rows > len(every):
        raise SettingError(f"--rows {rows} was given; there are {len(every)} validation prompts")
    if model.tokenizer is None:
        raise SettingError("the model has no tokenizer, so it cannot be asked; give one that has")
    if model.tokenizer.chat_template is None:
        return every[:rows]
    return [[{"role": "user", "content": text}] for text in every[:rows]]


def _checked_slots(slots: int) -> int:
    if "slots" not in inspect.signature(lastword.generate).parameters:
        raise SettingError(
            f"--slots {slots} was given; this version of lastword decodes all rows at once: leave it out"
        )
    return slots
