"""Prompts: text, chat messages or token ids, converted to token ids and validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lastword.canvas.tokens import PromptIds, TokenIds
from lastword.errors import PromptError
from lastword.models.base import MaskPredictor
from lastword.validation import MAX_SLOTS, as_int, check_choice, is_array, is_list, short_repr

Message = Mapping[str, str]
# Text, token ids, or a conversation; a single message is a conversation of one message.
Prompt = str | Sequence[int] | Tensor | Message | Sequence[Message]


def tokenize_prompts(model: MaskPredictor, prompt: Any) -> list[list[int]]:
    """Return one prompt, or a list of them, as lists of token ids; `validate_prompts` checks the ids."""
    return [_ids(model, item) for item in _as_list(prompt)]


def with_chat_template(model: MaskPredictor, prompt: Any, chat: bool | None) -> Any:
    """Return one prompt, or a list of them, with each text as a user message if the chat template is to be used.

    `chat=None` uses the template if the model has one. Messages always go through it; token ids never do.
    """
    check_choice("prompt", "chat", chat, True, False, None)
    if chat and None in prompts_in_chat(prompt):
        raise PromptError("chat=True was given with a prompt of token ids; give text or messages, or leave chat out")
    if chat is None:
        chat = has_chat_template(model)
    if not chat:
        return prompt
    prompts = [[{"role": "user", "content": item}] if isinstance(item, str) else item for item in _as_list(prompt)]
    return prompts if is_batch(prompt) else prompts[0]


def has_chat_template(model: MaskPredictor) -> bool:
    """Return whether the model's tokenizer has a chat template, as those of instruct models do."""
    return getattr(model.tokenizer, "chat_template", None) is not None


def prompts_in_chat(prompt: Any) -> list[bool | None]:
    """Return the kind of each prompt: True for chat messages, False for text, None for token ids."""
    return [False if isinstance(item, str) else _is_chat(item) or None for item in _as_list(prompt)]


def is_batch(prompt: Any) -> bool:
    """Return whether `prompt` is a list of prompts and not one prompt that is a list."""
    if is_array(prompt):
        return bool(getattr(prompt, "ndim", 0) == 2)
    if not is_list(prompt) or not prompt:
        return False
    return not isinstance(prompt[0], (Mapping, bool)) and not _is_id(prompt[0])


def _as_list(prompt: Any) -> list[Any]:
    return list(prompt) if is_batch(prompt) else [prompt]


def _is_chat(prompt: Any) -> bool:
    if is_list(prompt) and prompt:
        prompt = prompt[0]
    return isinstance(prompt, Mapping)


def _is_id(value: Any) -> bool:
    try:
        as_int(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _ids(model: MaskPredictor, prompt: Any) -> list[int]:
    is_chat = _is_chat(prompt)
    if is_chat or isinstance(prompt, str):
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise PromptError(
                "this checkpoint came without a tokenizer, so it cannot read text; give the prompt as a list "
                "of token ids"
            )
        messages = [prompt] if isinstance(prompt, Mapping) else prompt
        ids = tokenizer.chat(messages) if is_chat else tokenizer.encode(prompt)
        return _as_token_ids(ids, "the tokenizer returned", "it must return a list of token ids")
    if not is_list(prompt) and not (is_array(prompt) and prompt.ndim == 1):
        raise PromptError(
            f"a prompt of type {type(prompt).__name__} was given; give text, chat messages or a list of token ids"
        )
    return _as_token_ids(prompt, "a prompt contains something that is not a token id:")


def _as_token_ids(given: Any, problem: str, remedy: str = "give text, chat messages or whole-number ids") -> list[int]:
    """Return the ids of one prompt as plain ints; raise PromptError, which begins with `problem`, for anything else.

    Lists, tensors and arrays are accepted; bytes and sets contain integers too, but are rejected.
    """
    try:
        values = given.tolist() if is_array(given) else given
        if not is_list(values):
            raise TypeError(f"a {type(values).__name__} is not a list of token ids")
        ids = list(islice(values, MAX_SLOTS + 1))  # a range may be longer than len() can return
        if len(ids) > MAX_SLOTS:
            raise ValueError(f"it has more than {MAX_SLOTS} ids")
        all_ints = set(map(type, ids)) == {int}  # the usual case; converting ids one by one is slower
        return ids if all_ints else [as_int(value) for value in ids]
    except (TypeError, ValueError, RuntimeError) as error:
        raise PromptError(f"{problem} {short_repr(given)} ({error}); {remedy}") from error


def validate_prompts(prompts: Sequence[PromptIds], ids: TokenIds) -> list[Tensor]:
    """Return the prompts as tensors of token ids; raise PromptError with the index of an invalid prompt."""
    if not is_list(prompts) and not (is_array(prompts) and getattr(prompts, "ndim", 0) > 0):
        raise PromptError(f"{short_repr(prompts)} was given for prompts; give a list of lists of token ids")
    if not len(prompts):
        raise PromptError("no prompt was given; give at least one")
    return [_validate_prompt(prompt, number, ids) for number, prompt in enumerate(prompts)]


def _validate_prompt(prompt: PromptIds, number: int, ids: TokenIds) -> Int[Tensor, "P"]:
    tokens = _as_token_ids(prompt, f"prompt {number} is not a list of token ids:")
    if not tokens:
        raise PromptError(f"prompt {number} is empty; give at least one prompt, with at least one token")
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < ids.vocab_size:
            raise PromptError(
                f"prompt {number} contains id {short_repr(token)}, outside the vocabulary of "
                f"{ids.vocab_size} ids; use the tokenizer of this model"
            )
    if ids.mask in tokens:
        raise PromptError(
            f"prompt {number} contains the mask token (id {ids.mask}), which decoding would fill; remove it "
            "from the prompt"
        )
    return torch.tensor(tokens, dtype=torch.long)
