"""Chosen: the recipe that a request asks for, as it runs on the model and within limits."""

from __future__ import annotations

import json
from dataclasses import replace

from lastword.decoding.sampling import Sampling
from lastword.models.base import MaskPredictor
from lastword.policies.length.wrapper import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.recipe.text import from_data
from lastword.serve.api.invalid import Invalid, about
from lastword.serve.api.schema import Asking
from lastword.serve.limits import Limits


def chosen(request: Asking, limits: Limits) -> Recipe:
    """The recipe that was asked for, its length and its sampling replaced where the request says so."""
    for name in ("recipe", "length"):
        given = getattr(request, name)
        if not limits.recipes and (isinstance(given, dict) or (given is not None and name == "length")):
            raise Invalid(f"this server takes recipes by name only; leave {name} out", name)
    with about("recipe"):
        if request.recipe is None:
            recipe = limits.recipe or Recipe()
        elif isinstance(request.recipe, dict):
            recipe = Recipe.from_json(json.dumps(request.recipe))
        else:
            recipe = Recipe.coerce(request.recipe)
    if request.length is not None:
        with about("length"):
            recipe = replace(recipe, length=from_data("length", request.length))
    with about("temperature"):
        recipe = replace(recipe, sampling=_tempered(recipe.sampling, request.temperature))
    with about("top_p"):
        Sampling(temperature=1.0, top_p=request.top_p)
    # 1 filters nothing, and clients send it unasked; at a temperature of 0 nothing else does.
    if request.top_p in (None, 1) or (_is_greedy(recipe.sampling) and request.temperature == 0):
        return recipe
    with about("top_p"):
        return replace(recipe, sampling=replace(recipe.sampling, top_p=request.top_p))


def _tempered(own: Sampling, temperature: float | None) -> Sampling:
    """The recipe's sampling at the temperature that was asked for."""
    if temperature is None:
        return own
    if temperature == 0 and own.score == "model":  # nothing is left to filter
        return replace(own, temperature=0.0, top_p=None, top_k=None)
    return replace(own, temperature=temperature)


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 and sampling.score == "model"


def most_slots(model: MaskPredictor, limits: Limits) -> int:
    """Slots of a canvas that are allowed."""
    return limits.horizon or model.default_max_new_tokens


def within(
    recipe: Recipe,
    request: Asking,
    prompt: tuple[int, ...],
    in_chat: bool | None,
    model: MaskPredictor,
    limits: Limits,
) -> Recipe:
    """The recipe as it runs, what it left unsaid within limits; what it said is kept or refused."""
    param = "recipe" if request.length is None else "length"
    horizon, room = most_slots(model, limits), model.max_seq_len - len(prompt)

    def check(asked: Recipe) -> None:
        most = combined_traits(asked.length).upper_bound
        if most > min(horizon, room):
            whose = "were asked for"
            if request.recipe is None and request.length is None:
                whose = "are what this server's own recipe asks for"
            raise Invalid(
                f"{most} slots {whose}; this server gives at most {horizon}, and the prompt leaves "
                f"{room} of the model's positions",
                param,
                "context_length_exceeded" if most > room else None,
            )

    check(recipe)
    with about(param):
        resolved = resolve(recipe, model, [prompt], in_chat=[in_chat], room=horizon)
    check(resolved)
    return resolved
