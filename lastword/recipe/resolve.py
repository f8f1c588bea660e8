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
from lastword.policies.length.policy import LengthPolicy, ModelLimits, resolve_with
from lastword.policies.length.survival import Calibrated
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.text import to_text
from lastword.validation import check_choice, check_int, short_repr

DEFAULT_BLOCK = 32  # slots per block if a part needs blocks and `block` is unset; as in LLaDA's code
CALIBRATED_AXES = ("unmask", "commit", "block", "sampling")  # the parts that influence how long answers are


class BeyondTrainingWarning(UserWarning):
    """A warning that a recipe requests more slots than the model was made for."""


def resolve(
    recipe: Recipe | str,
    model: ModelProperties,
    prompts: Sequence[PromptIds] = (),
    *,
    in_chat: Collection[bool | None] = (),
    available_slots: int | None = None,
    exceed_max_seq_len: bool = False,
) -> Recipe:
    """Return the recipe as it runs on this model, with limits, block size and calibration filled in.

    An unset limit becomes `model.default_max_new_tokens`, or the number of positions that the prompts leave if that is
    less; prompts that would get different limits are rejected (`group_by_limit` separates them). A limit that is set is
    kept, with one warning if it exceeds the model's default; one that exceeds the model's context after the longest
    prompt is rejected unless `exceed_max_seq_len`. `available_slots` is an upper bound to which limits are lowered;
    evaluation uses it for long prompts. `in_chat` contains for each prompt whether it uses the chat template (None:
    unknown). Resolving a resolved recipe changes nothing.
    """
    check_model(model, properties_only=True)
    recipe = Recipe.coerce(recipe)
    check_prompt_options("resolve", in_chat, exceed_max_seq_len)
    if available_slots is not None:
        check_int("resolve", "available_slots", available_slots, minimum=1)
    lengths = _prompt_lengths(prompts)
    if not exceed_max_seq_len:
        _check_common_limit(recipe, model, lengths)
    longest, default = max(lengths, default=0), model.default_max_new_tokens
    must_fit = longest > 0 and not exceed_max_seq_len
    slots = _slots_left(model, longest) if must_fit else default
    length = resolve_with(recipe.length, ModelLimits(slots, available_slots, model.calibration))
    block = default_block(recipe, length)
    if block is None and _contains_calibrated(recipe.length):
        block = _calibrated_recipe(model, recipe).block
    resolved = replace(recipe, length=length, block=block)
    if _contains_calibrated(recipe.length):
        _check_calibration(resolved, model, in_chat)
    if recipe.cache.traits.stores_states and not model.supports_cache:
        raise SettingError(
            f"{type(recipe.cache).__name__} was given for a {type(model).__name__}, which cannot store the states of "
            "its layers: decode with cache=NoCache()"
        )
    horizon = combined_traits(length).upper_bound
    if must_fit:
        check_context_length(longest, horizon, model.max_seq_len)
    if horizon > default:
        warnings.warn(
            f"{horizon} slots were requested and the model is made for {default}: it was not trained on such lengths, "
            "and its predictions and answers may be nonsense",
            BeyondTrainingWarning,
            stacklevel=_frames_in_package(),
        )
    return resolved


def check_prompt_options(owner: str, in_chat: Collection[bool | None], exceed_max_seq_len: bool) -> None:
    """Raise an error unless these arguments, which `decode` and `resolve` have in common, are valid."""
    check_choice(owner, "exceed_max_seq_len", exceed_max_seq_len, True, False)
    kinds = (list, tuple, set, frozenset)
    if not isinstance(in_chat, kinds) or not {*map(type, in_chat)} <= {bool, type(None)}:
        raise WrongTypeError(
            f"{owner}(in_chat={short_repr(in_chat)}) was given; in_chat must be a list or set that says for each "
            "prompt whether it went through the chat template: True, False or None"
        )


def _prompt_lengths(prompts: Sequence[PromptIds]) -> list[int]:
    """Return the number of tokens of each prompt; the tokens themselves are not checked here."""
    texts = (str, bytes, Mapping)
    try:
        lengths = [0 if isinstance(prompt, texts) else len(prompt) for prompt in prompts]
    except TypeError:
        lengths = [0]
    if isinstance(prompts, texts) or 0 in lengths:
        raise PromptError(
            f"resolve was given prompts={short_repr(prompts)}; give a list of lists of token ids, none of them empty"
        )
    return lengths


def _check_common_limit(recipe: Recipe, model: ModelProperties, lengths: Sequence[int]) -> None:
    """Raise CapacityError if prompts of these lengths would get different limits."""
    if len(group_by_limit(recipe, model, lengths)) < 2:
        return
    slots = _slots_left(model, max(lengths))
    raise CapacityError(
        f"the longest prompt leaves {slots} of the {model.default_max_new_tokens} slots the model is made for, and "
        f"others leave more, so the batch has no common limit: set one of at most {slots}, or decode the prompts "
        "separately, as lastword.generate does"
    )


def group_by_limit(recipe: Recipe, model: ModelProperties, lengths: Sequence[int]) -> list[list[int]]:
    """Return prompt indices, given token counts, in groups for which the length policy resolves to the same value.

    There is one group unless a limit is unset and some prompts leave fewer positions than the model's default limit.
    """
    slots = [_slots_left(model, length) for length in lengths]
    if len(set(slots)) < 2:
        return [[*range(len(slots))]]
    policies = {left: resolve_with(recipe.length, ModelLimits(left, None, model.calibration)) for left in set(slots)}
    first = {left: next(other for other in policies if policies[other] == policies[left]) for left in policies}
    groups: dict[int, list[int]] = {}
    for index, left in enumerate(slots):
        groups.setdefault(first[left], []).append(index)
    return [*groups.values()]


def _slots_left(model: ModelProperties, prompt_length: int) -> int:
    """Return the model's default limit, or the number of positions that a prompt leaves, if that is less."""
    left = model.max_seq_len - prompt_length
    # A prompt that leaves no position is rejected by check_context_length.
    return min(model.default_max_new_tokens, left) if left > 0 else model.default_max_new_tokens


def _frames_in_package() -> int:
    """Return the `stacklevel` at which a warning points to the code that called this package."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lastword"):
        frame, count = frame.f_back, count + 1
    return count


def default_block(recipe: Recipe, length: LengthPolicy | None = None) -> int | None:
    """Return the block size: 32 if unset and a part needs blocks. `length` replaces the recipe's length policy."""
    needs_blocks = combined_traits(length or recipe.length).needs_blocks
    needs_blocks = needs_blocks or recipe.cache.traits.refreshes_by_block
    return DEFAULT_BLOCK if recipe.block is None and needs_blocks else recipe.block


def _contains_calibrated(policy: LengthPolicy) -> bool:
    """Return whether the policy is a Calibrated or contains one in any field."""
    inner = [value for value in vars(policy).values() if isinstance(value, LengthPolicy)]
    return isinstance(policy, Calibrated) or any(map(_contains_calibrated, inner))


def _check_calibration(resolved: Recipe, model: ModelProperties, in_chat: Collection[bool | None]) -> None:
    """Raise SettingError if the calibration was made with another model, another recipe or another kind of prompts."""
    if _contains_calibrated(resolved.length):
        raise SettingError(
            f"{type(resolved.length).__name__} was put around Calibrated and does not resolve it; give it a method "
            "`resolved`, as lastword.policies.length.wrappers.Wrapper has"
        )
    if model.calibration is None:
        return
    model.calibration.check_model(model_key(model), "the model's calibration")
    recipe = _calibrated_recipe(model, resolved)
    axes = [axis for axis in CALIBRATED_AXES if getattr(recipe, axis) != getattr(resolved, axis)]
    then, now = (
        ", ".join(f"{axis} {to_text(getattr(other, axis))}" for axis in axes).replace("block null", "no block")
        for other in (recipe, resolved)
    )
    if axes:
        raise SettingError(
            f"the model was calibrated on answers decoded with {then}, and this recipe has {now}, with which "
            "answers may be longer: decode with the former, or calibrate for this recipe "
            "(lastword.calibrate(..., recipe=...), lastword calibrate --recipe FILE)"
        )
    chat = model.calibration.made_with.get("chat")
    if chat is not None and not {*in_chat} <= {chat, None}:
        layouts = "plain text", "chat messages"
        raise SettingError(
            f"the model was calibrated on prompts given as {layouts[chat]}, and this prompt is {layouts[not chat]}, "
            "to which answers may be longer: give prompts as in the calibration (chat=True or False, on the command "
            "line --chat or --no-chat), or calibrate on prompts like this one"
        )


def _calibrated_recipe(model: ModelProperties, default: Recipe) -> Recipe:
    """Return the recipe that decoded the answers of the model's calibration, or `default` if it names none."""
    data = None if model.calibration is None else model.calibration.made_with.get("recipe")
    if data is None:  # a calibration written by hand
        return default
    recipe = Recipe.from_json(json.dumps(data))
    return replace(recipe, block=default_block(recipe))
