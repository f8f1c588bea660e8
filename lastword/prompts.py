"""Whatever a user may call a prompt, as lists of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lastword.errors import PromptError
from lastword.models.predictor import MaskPredictor
from lastword.tokens import token_id

Message = Mapping[str, str]
# Text, token ids, or a conversation; a lone message is a conversation of one.
Prompt = str | Sequence[int] | Tensor | Message | Sequence[Message]


def as_batch(model: MaskPredictor, prompt: Any) -> list[list[int]]:
    """One prompt or several, as a list of id lists. The canvas checks the ids."""
    return [_ids(model, one) for one in (prompt if is_batch(prompt) else [prompt])]


def is_batch(prompt: Any) -> bool:
    """Is this a list of prompts, rather than one prompt that happens to be a list?"""
    dimensions = getattr(prompt, "ndim", None)  # tensors and arrays say so themselves
    if dimensions is not None:
        return bool(dimensions == 2)
    if isinstance(prompt, (str, Mapping)) or not isinstance(prompt, Sequence) or not len(prompt):
        return False
    return not isinstance(prompt[0], (Mapping, bool)) and not _is_id(prompt[0])


def _ids(model: MaskPredictor, prompt: Any) -> list[int]:
    if isinstance(prompt, Mapping):
        prompt = [prompt]
    if getattr(prompt, "ndim", 1) != 1 or not hasattr(prompt, "__len__"):
        raise PromptError(
            f"a prompt of type {type(prompt).__name__} was given; give text, chat messages or a list of "
            "token ids"
        )
    is_chat = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if not isinstance(prompt, str) and not is_chat:
        try:
            return [token_id(token) for token in prompt]
        except TypeError as wrong:
            raise PromptError(
                f"a prompt holds something that is no token id ({wrong}); give text, chat messages or "
                "whole-number ids"
            ) from wrong
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise PromptError(
            "this checkpoint came without a tokenizer, so it cannot read text; "
            "give the prompt as a list of token ids"
        )
    ids: list[int] = tokenizer.chat(prompt) if is_chat else tokenizer.encode(prompt)
    return ids


def _is_id(value: Any) -> bool:
    try:
        token_id(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
