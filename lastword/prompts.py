"""Prompts: text, chat messages or token ids, converted to lists of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lastword.canvas.tokens import as_token_id, as_token_ids, is_array
from lastword.errors import PromptError
from lastword.models.base import MaskPredictor
from lastword.validation import is_list, short_repr

Message = Mapping[str, str]
# Text, token ids, or a conversation; a single message is a conversation of one.
Prompt = str | Sequence[int] | Tensor | Message | Sequence[Message]


def tokenize_prompts(model: MaskPredictor, prompt: Any) -> list[list[int]]:
    """Return one prompt or several as lists of token ids; `decode` checks the ids."""
    return [_ids(model, item) for item in _as_list(prompt)]


def prompts_in_chat(prompt: Any) -> set[bool | None]:
    """Return for each prompt whether it goes through the chat template (None: token ids do not tell)."""
    return {_is_chat(item) for item in _as_list(prompt)}


def is_batch(prompt: Any) -> bool:
    """Return whether this is a list of prompts rather than one prompt that is a list."""
    if is_array(prompt):
        return bool(getattr(prompt, "ndim", 0) == 2)
    if not is_list(prompt) or not prompt:
        return False
    return not isinstance(prompt[0], (Mapping, bool)) and not _is_id(prompt[0])


def _as_list(prompt: Any) -> list[Any]:
    return list(prompt) if is_batch(prompt) else [prompt]


def _is_chat(prompt: Any) -> bool | None:
    if isinstance(prompt, str):
        return False
    return isinstance(prompt, Mapping) or _is_conversation(prompt) or None


def _is_conversation(prompt: Any) -> bool:
    return is_list(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def _ids(model: MaskPredictor, prompt: Any) -> list[int]:
    if isinstance(prompt, Mapping):
        prompt = [prompt]
    is_text, is_chat = isinstance(prompt, str), _is_conversation(prompt)
    if not is_text and not is_chat:
        if not is_list(prompt) and not (is_array(prompt) and prompt.ndim == 1):
            raise PromptError(
                f"a prompt of type {type(prompt).__name__} was given; give text, chat messages or a list of "
                "token ids"
            )
        try:
            return as_token_ids(prompt)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PromptError(
                f"a prompt holds something that is no token id ({error}); give text, chat messages or "
                "whole-number ids"
            ) from error
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise PromptError(
            "this checkpoint came without a tokenizer, so it cannot read text; "
            "give the prompt as a list of token ids"
        )
    ids = tokenizer.chat(prompt) if is_chat else tokenizer.encode(prompt)
    try:
        return as_token_ids(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PromptError(
            f"the tokenizer made {short_repr(ids)} of a prompt ({error}); it must make a list of token ids"
        ) from error


def _is_id(value: Any) -> bool:
    try:
        as_token_id(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
