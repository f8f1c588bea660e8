"""What an evaluation asks of a model's tokenizer."""

from __future__ import annotations

from lastword.errors import SettingError
from lastword.models.base import MaskPredictor, TextTokenizer


def tokenizer_of(model: MaskPredictor) -> TextTokenizer:
    """The model's tokenizer; one that is asked in text must have one."""
    if model.tokenizer is None:
        raise SettingError(
            f"{type(model).__name__} has no tokenizer, and tasks are asked in text; give it one"
        )
    return model.tokenizer


def first_token(tokenizer: TextTokenizer | None) -> str:
    """What a text begins with if it is to begin with the tokenizer's own first token."""
    if tokenizer is None or tokenizer.bos is None:
        raise SettingError(
            "bos=True was given and the tokenizer names no token to begin a text with; leave it out"
        )
    return tokenizer.bos
