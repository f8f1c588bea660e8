"""Resolve a recipe for a model: fill in every unset value."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lastword.canvas.tokens import PromptIds
from lastword.decoding.forward import check_context_length
from lastword.errors import CapacityError, PromptError, SettingError, WrongTypeError
from lastword.models.base import ModelProperties, check_model
from lastword.models.weights import model_key
from lastword.policies.length.calibrated import Calibrated
from lastword.policies.length.policy import LengthPolicy, ModelLimits
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.text import to_text
from lastword.validation import check_choice, check_int, short_repr

DEFAULT_BLOCK = 32  # slots, where blocks are needed and their size was not said; the LLaDA authors' own


class BeyondTrainingWarning(UserWarning):
    """More slots than the model is made for were asked for."""


def resolve(
    recipe: Recipe | str,
    model: ModelProperties,
    prompts: Sequence[PromptIds] = (),
    *,
    in_chat: Collection[bool | None] = (),
    available_slots: int | None = None,
    exceed_max_seq_len: bool = False,
) -> Recipe:
    """The recipe as it runs on this model: limits, block size and calibration said, or a refusal.

    A limit that was left out is `model.slots`, or what the prompts leave of the model's positions; where
    they leave different room, so that it would not be one limit, they are refused (`rows_alike` tells them
    apart). A number is a promise: more slots than `model.slots` are kept, with one warning; more than the
    model has positions for, behind the longest prompt, are refused unless `exceed_max_seq_len`. With `room`,
    what was said is shortened to so many slots instead: evaluation does so for prompts that leave no more.
    `in_chat` says of the prompts whether they go through the chat template, None where nobody knows. A
    settled recipe settles to itself.
    """
    recipe = Recipe.coerce(recipe)
    check_model(model, properties_only=True)
    check_choice("resolve", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    if available_slots is not None:
        check_int("resolve", "available_slots", available_slots, minimum=1)
    kinds = (list, tuple, set, frozenset)
    if not isinstance(in_chat, kinds) or not {*map(type, in_chat)} <= {bool, type(None)}:
        raise WrongTypeError(
            f"resolve(in_chat={short_repr(in_chat)}) was given; in_chat must say of the prompts whether "
            "they went "
            "through the chat template: True, False or None, in a list or a set"
        )
    prompts = _listed(prompts)
    slots = model.default_max_new_tokens
    if prompts and not exceed_max_seq_len:
        slots = _slots_left(model, max(prompts, key=len))
        if len(group_by_limit(recipe, model, prompts)) > 1:
            raise CapacityError(
                f"the longest prompt leaves {slots} of the {model.default_max_new_tokens} slots the model "
                "is made for, and "
                f"others leave more, so a batch of them has no one limit: give one of at most {slots}, or "
                "decode them apart, as lastword.generate does"
            )
    length = recipe.length.resolved(ModelLimits(slots, available_slots, model.calibration))
    resolved = replace(recipe, length=length)
    resolved = replace(resolved, block=default_block(resolved))
    if _holds_calibrated(recipe.length):
        _check_calibrated(resolved, model, in_chat)
    if recipe.cache.traits.stores_states and not model.supports_cache:
        raise SettingError(
            f"{type(recipe.cache).__name__} was given for a {type(model).__name__}, whose layers cannot be "
            "reached, so that nothing can be kept from pass to pass: decode with cache=NoCache()"
        )
    most = combined_traits(length).upper_bound
    if prompts and not exceed_max_seq_len:
        check_context_length(max(map(len, prompts)), most, model.max_seq_len)
    if most > model.default_max_new_tokens:
        warnings.warn(
            f"{most} slots were asked for and the model is made for {model.default_max_new_tokens}: it "
            "was not trained "
            "there, and what it predicts and writes may be nonsense",
            BeyondTrainingWarning,
            stacklevel=_frames_inside(),
        )
    return resolved


def _listed(prompts: Sequence[PromptIds]) -> list[PromptIds]:
    """The prompts, if they have lengths; decoding looks at what is in them."""
    try:
        listed = list(prompts)
        wrong = [one for one in (prompts, *listed) if isinstance(one, (str, bytes, Mapping))]
        lengths = [len(one) for one in listed]
    except TypeError as other:
        raise PromptError(
            f"resolve was given prompts={short_repr(prompts)}; give a list of lists of token ids"
        ) from other
    if wrong or 0 in lengths:
        raise PromptError(
            f"resolve was given {short_repr(wrong[0]) if wrong else 'an empty list'} for a prompt; give "
            "lists of "
            "token ids"
        )
    return listed


def group_by_limit(recipe: Recipe, model: ModelProperties, prompts: Sequence[PromptIds]) -> list[list[int]]:
    """Indices of the prompts, those together for which the recipe settles to the same length.

    One list, but where a limit was left out and some prompts leave less than the model's own.
    """
    alike: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        alike.setdefault(_slots_left(model, prompt), []).append(index)
    if len(alike) == 1:
        return [*alike.values()]
    groups: list[tuple[LengthPolicy, list[int]]] = []
    for slots, rows in alike.items():
        length = recipe.length.resolved(ModelLimits(slots, None, model.calibration))
        for known, others in groups:
            if known == length:
                others += rows
                break
        else:
            groups.append((length, rows))
    return [sorted(rows) for _, rows in groups]


def _slots_left(model: ModelProperties, prompt: PromptIds) -> int:
    """The model's own canvas, or what the prompt leaves of it."""
    left = model.max_seq_len - len(prompt)
    return (
        min(model.default_max_new_tokens, left) if left > 0 else model.default_max_new_tokens
    )  # nothing is left: refused later


def _frames_inside() -> int:
    """How far up the caller is who is not one of us, so that a warning points there, once."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lastword"):
        frame, count = frame.f_back, count + 1
    return count


def _holds_calibrated(policy: LengthPolicy) -> bool:
    """Is it one, or does it hold one, in whatever field?"""
    inside = [value for value in vars(policy).values() if isinstance(value, LengthPolicy)]
    return isinstance(policy, Calibrated) or any(map(_holds_calibrated, inside))


def default_block(recipe: Recipe) -> int | None:
    """The slots of a block: those that were said, or 32 where a part works by block, or None."""
    by_block = recipe.cache.traits.refreshes_by_block or combined_traits(recipe.length).needs_blocks
    return DEFAULT_BLOCK if recipe.block is None and by_block else recipe.block


def _check_calibrated(resolved: Recipe, model: ModelProperties, in_chat: Collection[bool | None]) -> None:
    """Refuse a calibration of another model, another way to decode, or other prompts."""
    if _holds_calibrated(resolved.length):
        raise SettingError(
            f"{type(resolved.length).__name__} was put around Calibrated and does not pass on what the "
            "model was calibrated to; give it a method `resolved`, as "
            "lastword.policies.length.wrappers.Wrapper has"
        )
    if model.calibration is not None:
        model.calibration.check_model(model_key(model), "the model's calibration")
        made_with = model.calibration.made_with
        if made_with.get("recipe") is not None:  # else made by hand; it is taken at its word
            then = Recipe.from_json(json.dumps(made_with["recipe"]))
            _check_decodes_as(resolved, replace(then, block=default_block(then)))
        _check_asked_as(made_with.get("chat"), in_chat)


def _check_decodes_as(now: Recipe, then: Recipe) -> None:
    """Refuse lengths of answers that were decoded otherwise."""
    axes = ("unmask", "commit", "block", "sampling")
    other = [axis for axis in axes if getattr(then, axis) != getattr(now, axis)]
    if other:
        theirs, ours = (
            ", ".join(f"{axis} {to_text(getattr(recipe, axis))}" for axis in other).replace(
                "block null", "no block"
            )
            for recipe in (then, now)
        )
        raise SettingError(
            f"the model was calibrated on answers decoded with {theirs}, and this recipe has {ours}, by "
            "which answers may come out longer: decode with the former, or calibrate for this recipe "
            "(lastword.calibrate(..., recipe=...), lastword calibrate --recipe FILE)"
        )


def _check_asked_as(then: bool | None, now: Collection[bool | None]) -> None:
    """Refuse lengths of answers to prompts that were laid out otherwise."""
    if then is None or all(asked in (then, None) for asked in now):  # ids do not say
        return
    chat, plain = "chat messages", "plain text"
    as_then, as_now = (chat, plain) if then else (plain, chat)
    raise SettingError(
        f"the model was calibrated on prompts given as {as_then}, and this prompt is {as_now}, to which "
        "answers may come out longer: ask as it was calibrated (on the command line --chat wraps text in "
        "the chat template), or calibrate on prompts like this one"
    )
