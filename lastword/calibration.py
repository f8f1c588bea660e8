"""Learn a model's lengths from its own finished answers: no labels, no reference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lastword.checks import check_whole
from lastword.errors import SettingError
from lastword.generate import Finish, generate, predict_length
from lastword.length import Fixed, StopAtEnd
from lastword.models.predictor import MaskPredictor
from lastword.models.weights import fingerprint
from lastword.prompts import Prompt, as_batch
from lastword.recipe import Recipe
from lastword.survival import (
    Auto,
    Calibration,
    Cheapest,
    Mean,
    Quantile,
    Reading,
    samples_needed,
)
from lastword.unmask import AboveThreshold
from lastword.version import __version__

FAST = Recipe(length=Fixed(), unmask=AboveThreshold(0.9), block=32)


def calibrate(
    model: MaskPredictor,
    prompts: Sequence[Prompt],
    families: Sequence[str | None] | None = None,
    *,
    limit: int = 1024,
    ends: str = "document",
    reading: Reading = Auto(),
    estimate: Mean | Quantile | Cheapest = Mean(),
    coverage: float = 0.9,
    recipe: Recipe = FAST,
    rows: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Predict the prompts' lengths, decode them on a canvas of `limit` slots, and compare.

    Everything but the length is decoded as `recipe` says: take the one you will use, since fewer
    passes may make other answers. Too few prompts for `coverage`, of all or of a family, are refused
    before the first pass. An answer that fills the canvas without an end is counted as cut.
    Costs a probe and a whole answer per prompt.
    """
    check_whole("calibrate", "rows", rows, least=1)
    named = list(families) if families is not None else [None] * len(prompts)
    if len(named) != len(prompts):
        raise SettingError(f"{len(prompts)} prompts and {len(named)} families were given")
    _check_enough(named, coverage)
    roomy = Fixed(limit) if recipe.block is None else StopAtEnd(Fixed(limit))
    recipe = replace(recipe, length=roomy)
    batch = as_batch(model, list(prompts))
    order = sorted(range(len(batch)), key=lambda place: len(batch[place]))
    predicted: list[float] = [0.0] * len(batch)
    finished: list[int | None] = [None] * len(batch)
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        asked = [batch[place] for place in places]
        lengths = predict_length(model, asked, limit=limit, ends=ends, reading=reading)
        answers = generate(model, asked, recipe=recipe, seed=[seed + place for place in places])
        for place, guess, answer in zip(places, estimate(lengths).tolist(), answers):
            predicted[place] = guess
            if answer.finish is Finish.ENDED:
                finished[place] = len(answer.tokens) + 1  # the end token's slot counts
        progress(first + len(places), len(order))
    made_with = {
        "lastword": __version__,
        "torch": torch.__version__,
        "coverage": coverage,
        "recipe": json.loads(recipe.to_json()),
    }
    found = Calibration.of(
        predicted,
        finished,
        named,
        weights=fingerprint(model),
        limit=limit,
        ends=ends,
        reading=reading,
        estimate=estimate,
        made_with=made_with,
    )
    for family in found.families:
        found.bound(coverage, family)  # refused if too many answers were cut to know it
    return found


def _check_enough(families: Sequence[str | None], coverage: float) -> None:
    needed = samples_needed(coverage)
    counts = Counter(family for family in families if family is not None)
    for name, count in [("", len(families)), *sorted(counts.items())]:
        if count < needed:
            of = f" of the family {name!r}" if name else ""
            raise SettingError(
                f"{count} prompts{of} cannot carry a bound that covers {coverage:.0%}: at least {needed} "
                "are needed, and 100 or more for one that hardly depends on which; give more prompts or "
                "ask for less coverage"
            )
