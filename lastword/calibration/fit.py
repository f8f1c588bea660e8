"""Fit a calibration from a model's own answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lastword.api import Finish, Model, as_model
from lastword.calibration.ratios import Calibration, check_families
from lastword.engines.base import (
    Engine,
    GenerationReply,
    GenerationRequest,
    LengthPredictor,
    RemoteModelInfo,
    check_engine,
)
from lastword.engines.local import LocalEngine
from lastword.errors import EngineError, PromptError, SettingError
from lastword.models.base import MaskPredictor
from lastword.models.weights import model_key
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy, LengthTraits, Plan, Probe
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd, Wrapper
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.prompts import Prompt, is_batch, prompts_in_chat, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.recipe.text import parse_part
from lastword.survival.conformal import min_samples
from lastword.survival.estimate import Cheapest, Mean, Quantile
from lastword.survival.interpretation import Auto, Interpretation
from lastword.validation import (
    MAX_SEED,
    MIN_SEED,
    check_callable,
    check_int,
    check_list,
    check_type,
)
from lastword.version import __version__


@dataclass(frozen=True)
class FixedWithProbe(Wrapper):
    """Plan with `length`, and say what `survival` would have read: lengths are compared, not used."""

    name: ClassVar[str] = "roomy"
    cost_summary: ClassVar[str] = "one probe, for the record alone"
    source: ClassVar[str] = ""

    survival: Survival = Survival()

    traits = LengthTraits()

    def plan(self, probe: Probe) -> Plan:
        return replace(super().plan(probe), lengths=self.survival.lengths(probe))


__all__ = ["calibrate"]

FAST = Recipe(length=Fixed(), unmask=AboveThreshold(0.9), block=32)


def calibrate(
    model: Model | RemoteModelInfo,
    prompts: Sequence[Prompt],
    families: Sequence[str | None] | None = None,
    *,
    limit: int | None = None,
    ends: str = "document",
    interpretation: Interpretation | str = Auto(),
    estimate: Mean | Quantile | Cheapest = Mean(),
    coverage: float = 0.9,
    recipe: Recipe | str = FAST,
    rows: int = 8,
    seed: int = 0,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Predict the prompts' lengths, decode them on a canvas of `limit` slots (the model's own), and compare.

    Everything but the length is decoded as `recipe` says: take the one you will use, since fewer
    passes may make other answers and `Calibrated` refuses another. Give prompts as you will ask them,
    chat messages or plain text: it refuses the other kind, too. Whatever can be refused is, before the
    first pass: too few prompts for `coverage`, of all or of a family, or a prompt that leaves no room
    for `limit` slots. An answer that fills the canvas without an end is counted as cut; the calibration
    then carries less coverage than its number of prompts says, and `bound` says so. If none ended, there
    is nothing to compare with, and no calibration. Costs a probe and a whole answer per prompt. With an
    `engine` its workers answer; the model may then be `engine.model_info`.
    """
    check_int("calibrate", "rows", rows, minimum=1)
    check_type(
        "calibrate",
        "estimate",
        estimate,
        (Mean, Quantile, Cheapest),
        "Mean(), Quantile(q) or Cheapest(cut): the factor is what it finds out",
    )
    check_callable("calibrate", "progress", progress, ("done", "total"))
    if engine is not None:
        check_engine("calibrate", engine)
    recipe = Recipe.coerce(recipe)
    interpretation = (
        parse_part("interpretation", interpretation) if isinstance(interpretation, str) else interpretation
    )
    survival = Survival(limit, estimate, ends, interpretation)
    if isinstance(model, RemoteModelInfo):
        raise SettingError("a server does not report its weights, so calibrate where the model is loaded")
    model = as_model(model)
    batch = _one_by_one(model, prompts)
    check_int("calibrate", "seed", seed, minimum=MIN_SEED, maximum=MAX_SEED - len(batch))
    if families is not None:
        check_list("calibrate", "families", families, "a list with a name or None a prompt")
    named = [None] * len(batch) if families is None else list(families)
    if len(named) != len(batch):
        raise SettingError(f"{len(batch)} prompts and {len(named)} families were given")
    check_families(named)
    _check_enough(named, coverage)
    longest = [max(batch, key=len)] if batch else []
    limit = (
        resolve(Recipe(length=survival), model, longest).length.traits.max_slots
        or model.default_max_new_tokens
    )
    survival = replace(survival, limit=limit)
    roomy = Fixed(limit) if recipe.block is None else StopAtEnd(Fixed(limit))
    recipe = replace(recipe, length=roomy)
    kinds = set[bool | None]().union(*map(prompts_in_chat, prompts))
    made_with = {
        "lastword": __version__,
        "torch": torch.__version__,
        "coverage": coverage,
        "chat": kinds.pop() if len(kinds) == 1 else None,
        "recipe": json.loads(recipe.to_json()),
    }
    weights = model_key(model)
    asking = LocalEngine(model) if engine is None else engine
    questions = {at: GenerationRequest(prompt, seed + at) for at, prompt in enumerate(batch)}
    predicted: list[float] = [0.0] * len(batch)
    finished: list[int | None] = [None] * len(batch)
    if not isinstance(estimate, Mean):
        reading_alone = replace(recipe, length=survival)
        for at, slots in _planned(asking, questions, reading_alone, rows).items():
            predicted[at] = slots
    probing = replace(recipe, length=_probing(recipe.length, survival))
    done = 0
    for replies in asking.generate(questions, probing, max_batch_size=rows):
        for reply in replies:
            _take(reply, estimate, predicted, finished)
        done += len(replies)
        progress(done, len(batch))
    if not any(finished):
        raise SettingError(
            f"none of the {len(finished)} answers ended on {limit} slots, so how long they are is not known: "
            "give a larger limit (--limit), or decode by another recipe (--recipe, --unmask, --block)"
        )
    return Calibration.from_answers(
        predicted,
        finished,
        named,
        model_key=weights,
        limit=limit,
        ends=ends,
        interpretation=interpretation,
        estimate=estimate,
        made_with=made_with,
    )


def _probing(roomy: LengthPolicy, survival: Survival) -> LengthPolicy:
    """The same canvas, whose plan tells what survival reads."""
    if isinstance(roomy, StopAtEnd):
        return replace(roomy, length=FixedWithProbe(roomy.length, survival))
    return FixedWithProbe(roomy, survival)


def _planned(
    engine: Engine, questions: dict[int, GenerationRequest], recipe: Recipe, rows: int
) -> dict[int, float]:
    """What an estimate of whole slots says of each, which replies do not tell: they have the mean."""
    if not isinstance(engine, LengthPredictor):
        raise SettingError(
            f"a {type(engine).__name__} was given for an engine, which tells no planned lengths; take "
            "--estimate mean, or another engine"
        )
    found: dict[int, float] = {}
    for some in engine.predict_lengths(questions, recipe, max_batch_size=rows):
        found |= {at: float(slots) for at, slots in some.items()}
    return found


def _take(
    reply: GenerationReply[int],
    estimate: Mean | Quantile | Cheapest,
    predicted: list[float],
    finished: list[int | None],
) -> None:
    """Keep what was predicted of an answer, and how long it came out."""
    if reply.error is not None:
        raise EngineError(
            f"prompt {reply.key} was not answered ({reply.error}), and a calibration that leaves out what "
            "fails would say too little: mend it or leave that prompt out"
        )
    if isinstance(estimate, Mean):
        predicted[reply.key] = reply.details["expected_length"]
    if reply.details["finish"] == Finish.ENDED.name.lower():
        finished[reply.key] = reply.details["length"] + 1  # the end token's slot counts


def _one_by_one(model: MaskPredictor, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Each prompt's ids. A lone message is a prompt here, never part of a conversation."""
    if not is_batch(prompts) and not isinstance(prompts, (list, tuple)):
        raise PromptError(
            f"calibrate was given one prompt, a {type(prompts).__name__}; give it a list of prompts"
        )
    found = [tokenize_prompts(model, prompt) for prompt in prompts]
    for number, rows in enumerate(found):
        if len(rows) != 1:
            raise PromptError(
                f"prompt {number} is a list of {len(rows)} prompts; give calibrate one list of prompts"
            )
    return [row for (row,) in found]


def _check_enough(families: Sequence[str | None], coverage: float) -> None:
    needed = min_samples(coverage)
    counts = Counter(family for family in families if family is not None)
    for name, count in [("", len(families)), *sorted(counts.items())]:
        if count < needed:
            of = f" of the family {name!r}" if name else ""
            raise SettingError(
                f"{count} prompts{of} cannot carry a bound that covers {coverage:.0%}: at least {needed} "
                "are needed, and 100 or more for one that hardly depends on which; give more prompts or "
                "ask for less coverage"
            )
