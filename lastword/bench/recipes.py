"""Seconds of whole recipes on the embedded models: the same prompts, engine and run for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lastword
from lastword.api import default_batch_size, trimmed
from lastword.bench.meter import Meter
from lastword.bench.record import Line
from lastword.bench.tally import Tally, tallied
from lastword.decoding.loop import Step, decode
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.prompts import tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES
from lastword.tasks import BENCHMARKS
from lastword.tasks.frozen import load_frozen

# Lengths that say no limit keep to the model's own canvas.
ARMS: dict[str, Recipe] = {
    **{name: Recipe.named(name) for name in RECIPES},
    "default": Recipe(),
    "sampled": Recipe(sampling=Sampling(temperature=0.7)),
}


def recipe_lines(
    name: str,
    model: Any,
    meter: Meter,
    arms: Sequence[str],
    rows: int,
    slots: int | None = None,
    solo: int = 0,
) -> Iterator[Line]:
    """A line per recipe: all rows handed over at once; `solo` of them are decoded alone as well."""
    asked = prompts_for(model, rows)
    for arm in arms:
        line = _line(model, asked, ARMS[arm], meter, min(rows, slots or default_batch_size(model)), solo)
        yield line.model_copy(update={"case": f"{name}, {arm}"})


def _line(model: Any, asked: Sequence[Any], recipe: Recipe, meter: Meter, slots: int, solo: int) -> Line:
    """The rows' own decoding is timed, not their tokenizer: in evaluation a batch's seconds are these too."""
    prompts, rows = tokenize_prompts(model, asked), len(asked)
    tally = Tally(rows)

    def steps() -> Iterator[Step]:
        return decode(model, prompts, recipe, max_batch_size=slots, use_cuda_graphs=True)

    def call() -> None:
        nonlocal tally
        tally = tallied(steps(), rows)

    timed = meter.median(call)
    costs = [cost for row in tally.done for cost in (row.cost, row.probe_cost)]
    written = {row.request_id: row.canvas.answer_ids(0) for row in tally.done}
    tokens = sum(len(trimmed(row.canvas, 0, written[row.request_id])[0]) for row in tally.done)
    seconds = timed.ms / 1000
    line = Line(
        line="recipes",
        case=recipe.label(),
        rows=rows,
        runs=timed.runs,
        ms=timed.ms / tally.passes,
        seconds=seconds,
        first_seconds=timed.first,
        passes=tally.passes,
        tokens=tokens,
        columns=float(sum(cost.tokens_computed for cost in costs)),
        peak_mb=timed.peak_mb,
        tokens_per_second=tokens / seconds,
        tokens_per_forward=tokens / sum(cost.forward_passes for cost in costs),
        occupancy=tally.occupancy,
    )
    if not solo:
        return line
    chosen = [at * rows // solo for at in range(solo)]
    alone = (lastword.generate(model, asked[at], recipe=recipe, seed=at) for at in chosen)
    equal = sum(answer.canvas == written[at] for at, answer in zip(chosen, alone))
    return line.model_copy(update={"solo": solo, "solo_equal": equal})


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
