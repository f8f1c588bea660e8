"""What an evaluation asks of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from lastword.errors import SettingError
from lastword.models.predictor import MaskPredictor


@runtime_checkable
class Tokenizes(Protocol):
    """Text to ids and back. It may name a first token in `bos` and a template in `chat_template`."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str: ...

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False
    ) -> list[int]: ...


def tokenizer_of(model: MaskPredictor) -> Tokenizes:
    """The model's tokenizer; one that is asked in text must have one."""
    tokenizer: Tokenizes | None = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise SettingError(
            f"{type(model).__name__} has no tokenizer, and tasks are asked in text; give it one"
        )
    return tokenizer


def has_template(tokenizer: Tokenizes) -> bool:
    """Is there a chat template to ask through?"""
    return getattr(tokenizer, "chat_template", None) is not None


def first_token(tokenizer: Tokenizes) -> str:
    """What a text begins with if it is to begin with the tokenizer's own first token."""
    token: str | None = getattr(tokenizer, "bos", None)
    if token is None:
        raise SettingError(
            "bos=True was given and the tokenizer names no token to begin a text with; leave it out"
        )
    return token
