"""Fit a calibration to a model's own answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch

from lastword.api import Finish, Model, as_model
from lastword.calibration import ALL_FAMILIES, Calibration
from lastword.engines.base import Engine, GenerationReply, GenerationRequest, RemoteModelInfo, check_engine
from lastword.engines.local import LocalEngine
from lastword.errors import EngineError, PromptError, SettingError
from lastword.models.base import MaskPredictor
from lastword.models.weights import model_key
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthTraits, Plan, Probe, resolved_slots
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd, Wrapper
from lastword.prompts import Prompt, is_batch, prompts_in_chat, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import default_block, resolve
from lastword.recipe.text import parse_part
from lastword.survival.conformal import min_samples
from lastword.survival.distribution import Cheapest, Mean, Quantile
from lastword.survival.interpretation import Auto, Interpretation
from lastword.validation import MAX_SEED, MIN_SEED, check_callable, check_int, check_list, check_type, checks_arguments
from lastword.version import __version__


@dataclass(frozen=True)
class FixedWithProbe(Wrapper):
    """A length policy that plans as the wrapped one; lengths that `survival` predicts are only reported."""

    name: ClassVar[str] = "fixed-with-probe"
    cost_summary: ClassVar[str] = "one probe, for the record alone"
    source: ClassVar[str] = ""
    traits = LengthTraits()

    survival: Survival = Survival()

    def plan(self, probe: Probe) -> Plan:
        return replace(super().plan(probe), lengths=self.survival.lengths(probe))


@checks_arguments()
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
    recipe: Recipe | str | None = None,
    max_batch_size: int = 8,
    seed: int = 0,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Predict the length of each answer, decode it on `limit` slots; return the ratios true / predicted length.

    Use the recipe (its length is ignored; by default `careful`) and the kind of prompt, chat messages or plain text,
    that you will use later: `Calibrated` refuses all others, because their answers may have other lengths. An answer
    without an end token counts as truncated. An error is raised before the first forward pass if there are too few
    prompts for `coverage`, or if `limit` slots (None: the model's default) do not fit after a prompt, and at the end if
    no answer ended. With an `engine`, its workers decode, and `model` may be `engine.model_info`. It costs a probe and
    an answer per prompt.
    """
    check_int("calibrate", "max_batch_size", max_batch_size, minimum=1)
    expected = "Mean(), Quantile(q) or Cheapest(cut): its factor is what calibrate measures"
    check_type("calibrate", "estimate", estimate, (Mean, Quantile, Cheapest), expected)
    check_callable("calibrate", "progress", progress, ("done", "total"))
    if engine is not None:
        check_engine("calibrate", engine)
    if isinstance(model, RemoteModelInfo):
        raise SettingError("a server does not report its weights, so calibrate where the model is loaded")
    if isinstance(interpretation, str):
        interpretation = cast(Interpretation, parse_part("interpretation", interpretation))
    recipe, model = Recipe.coerce(recipe), as_model(model)
    if engine is not None and engine.model_info is not model and model_key(engine.model_info) != model_key(model):
        raise SettingError("calibrate was given an engine of another model; give it the model engine.model_info")
    recipe = replace(recipe, block=default_block(recipe))
    survival = Survival(limit, estimate, ends, interpretation)
    rows = _tokenize(model, prompts)
    check_int("calibrate", "seed", seed, minimum=MIN_SEED, maximum=MAX_SEED - len(rows))
    families = _check_families(families, len(rows), coverage)
    longest = [max(rows, key=len)] if rows else []
    survival = cast(Survival, resolve(Recipe(length=survival), model, longest).length)
    limit = resolved_slots(survival, survival.limit)
    canvas, measured = Fixed(limit), FixedWithProbe(Fixed(limit), survival)
    recipe, with_probe = (
        replace(recipe, length=length if recipe.block is None else StopAtEnd(length)) for length in (canvas, measured)
    )
    kinds = set[bool | None]().union(*map(prompts_in_chat, prompts))
    key = model_key(model)
    requests = {number: GenerationRequest(row, seed + number) for number, row in enumerate(rows)}
    engine = LocalEngine(model) if engine is None else engine
    predicted: list[float] = [0.0] * len(rows)
    finished: list[int | None] = [None] * len(rows)
    if not isinstance(estimate, Mean):
        predicted = _predict(engine, requests, replace(recipe, length=survival), max_batch_size)
    done = 0
    for replies in engine.generate(requests, with_probe, max_batch_size=max_batch_size):
        for reply in replies:
            finished[reply.key] = _finished_length(reply)
            if isinstance(estimate, Mean):
                predicted[reply.key] = reply.details["expected_length"]
        done += len(replies)
        progress(done, len(rows))
    if not any(finished):
        raise SettingError(
            f"none of the {len(rows)} answers ended within {limit} slots, so their lengths are unknown: use "
            "a larger limit (--slots) or another recipe (--recipe, --unmask, --block)"
        )
    return Calibration.from_answers(
        predicted, finished, families,
        model_key=key, limit=limit, ends=ends, interpretation=interpretation, estimate=estimate,
        made_with={
            "lastword": __version__,
            "torch": torch.__version__,
            "coverage": coverage,
            "chat": kinds.pop() if len(kinds) == 1 else None,
            "recipe": json.loads(recipe.to_json()),
        },
    )  # fmt: skip


def _predict(
    engine: Engine, requests: dict[int, GenerationRequest], recipe: Recipe, max_batch_size: int
) -> list[float]:
    """Return the planned slots of each request, for estimates other than the mean; replies contain only the mean."""
    slots: dict[int, int] = {}
    for batch in engine.predict_lengths(requests, recipe, max_batch_size=max_batch_size):
        slots |= batch
    if not slots:
        raise SettingError(
            f"the engine, a {type(engine).__name__}, does not predict lengths; use the estimate Mean() "
            "(--estimate mean) or another engine"
        )
    return [float(slots.get(number, 0)) for number in requests]


def _finished_length(reply: GenerationReply[int]) -> int | None:
    """Return the length of an answer, end token included, or None if truncated; raise EngineError if it failed."""
    if reply.error is not None:
        raise EngineError(
            f"prompt {reply.key} was not answered ({reply.error}), and a calibration without the failed "
            "prompts would be biased: fix the cause or remove the prompt"
        )
    ended = reply.details["finish"] == Finish.ENDED.name.lower()
    return reply.details["length"] + 1 if ended else None


def _tokenize(model: MaskPredictor, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the token ids of each prompt. A message in the list is a whole prompt, not a turn of a conversation."""
    if not is_batch(prompts) and not isinstance(prompts, (list, tuple)):
        raise PromptError(f"calibrate was given one prompt, a {type(prompts).__name__}; give it a list of prompts")
    batches = [tokenize_prompts(model, prompt) for prompt in prompts]
    for number, rows in enumerate(batches):
        if len(rows) != 1:
            raise PromptError(f"prompt {number} is a list of {len(rows)} prompts; give calibrate one list of prompts")
    return [row for (row,) in batches]


def _check_families(families: Sequence[str | None] | None, prompts: int, coverage: float) -> list[str | None]:
    """Return a family or None per prompt; raise SettingError if one has too few prompts for the coverage."""
    if families is None:
        families = [None] * prompts
    check_list("calibrate", "families", families, "a list with a name or None per prompt")
    if len(families) != prompts:
        raise SettingError(f"{prompts} prompts and {len(families)} families were given; give as many")
    for family in (family for family in families if family is not None):
        if not isinstance(family, str) or family == ALL_FAMILIES:
            raise SettingError(
                f"a family called {family!r} was given; a family is text or None, and {ALL_FAMILIES!r} is the "
                "name of all answers together: use another name"
            )
    needed, counts = min_samples(coverage), Counter(family for family in families if family is not None)
    for name, count in [("", prompts), *sorted(counts.items())]:
        if count < needed:
            owner = f" of the family {name!r}" if name else ""
            raise SettingError(
                f"{count} prompts{owner} do not suffice for a bound that covers {coverage:.0%}: at least {needed} "
                "are needed, and 100 or more for a stable one; give more prompts or use a lower coverage"
            )
    return list(families)
