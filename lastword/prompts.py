"""Whatever a user may call a prompt, as lists of token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lastword.canvas.ids import token_id
from lastword.errors import PromptError
from lastword.models.predictor import MaskPredictor, check_model

Message = Mapping[str, str]
# Text, token ids, or a conversation; a lone message is a conversation of one.
Prompt = str | Sequence[int] | Tensor | Message | Sequence[Message]


def as_batch(model: MaskPredictor, prompt: Any) -> list[list[int]]:
    """One prompt or several, as a list of id lists. The canvas checks the ids."""
    check_model(model)
    return [_ids(model, one) for one in _each(prompt)]


def asked_in_chat(prompt: Any) -> set[bool | None]:
    """Does a prompt, or do those of a batch, go through the chat template? Ids do not say: None."""
    return {_is_chat(one) for one in _each(prompt)}


def read_prompts(
    path: Path, family_field: str | None = None, *, chat: bool = False
) -> tuple[list[Any], list[str | None]]:
    """The prompts of a file and their families: a line each, or objects with a "prompt" in a .jsonl."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as missing:
        raise PromptError(f"the prompts cannot be read ({missing})") from missing
    if path.suffix != ".jsonl" and family_field is not None:
        raise PromptError(
            f"a family field was given for {path.name}, whose lines are prompts; families need a .jsonl file"
        )
    prompts: list[Any] = []
    families: list[str | None] = []
    for place, line in enumerate(lines, 1):
        data = {"prompt": line} if path.suffix != ".jsonl" else _object(line, path, place)
        wanted = ["prompt"] if family_field is None else ["prompt", family_field]
        missing_fields = [field for field in wanted if field not in data]
        if missing_fields:
            raise PromptError(
                f"prompt {place} of {path.name} has no field {missing_fields[0]!r}; it has "
                f"{', '.join(data) or 'none'}"
            )
        prompt = data["prompt"]
        is_text = isinstance(prompt, str)
        prompts.append([{"role": "user", "content": prompt}] if chat and is_text else prompt)
        family = None if family_field is None else data[family_field]
        families.append(None if family is None else str(family))
    if not prompts:
        raise PromptError(f"{path.name} holds no prompts; give it one a line")
    return prompts, families


def _object(line: str, path: Path, place: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as broken:
        raise PromptError(f"line {place} of {path.name} is not JSON ({broken})") from broken
    if not isinstance(data, dict):
        raise PromptError(f'line {place} of {path.name} is no object with a "prompt": {line[:40]}')
    return data


def is_batch(prompt: Any) -> bool:
    """Is this a list of prompts, rather than one prompt that happens to be a list?"""
    dimensions = getattr(prompt, "ndim", None)  # tensors and arrays say so themselves
    if dimensions is not None:
        return bool(dimensions == 2)
    if isinstance(prompt, (str, Mapping)) or not isinstance(prompt, Sequence) or not len(prompt):
        return False
    return not isinstance(prompt[0], (Mapping, bool)) and not _is_id(prompt[0])


def _each(prompt: Any) -> list[Any]:
    return list(prompt) if is_batch(prompt) else [prompt]


def _is_chat(prompt: Any) -> bool | None:
    if isinstance(prompt, str):
        return False
    lone = isinstance(prompt, Mapping)
    return lone or (len(prompt) > 0 and isinstance(prompt[0], Mapping)) or None


def _ids(model: MaskPredictor, prompt: Any) -> list[int]:
    if isinstance(prompt, Mapping):
        prompt = [prompt]
    if getattr(prompt, "ndim", 1) != 1 or not hasattr(prompt, "__len__"):
        raise PromptError(
            f"a prompt of type {type(prompt).__name__} was given; give text, chat messages or a list of "
            "token ids"
        )
    is_chat = _is_chat(prompt)
    if is_chat is None:
        try:
            return [token_id(token) for token in prompt]
        except TypeError as wrong:
            raise PromptError(
                f"a prompt holds something that is no token id ({wrong}); give text, chat messages or "
                "whole-number ids"
            ) from wrong
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise PromptError(
            "this checkpoint came without a tokenizer, so it cannot read text; "
            "give the prompt as a list of token ids"
        )
    return tokenizer.chat(prompt) if is_chat else tokenizer.encode(prompt)


def _is_id(value: Any) -> bool:
    try:
        token_id(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
