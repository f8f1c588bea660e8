"""Toy: a predictor whose length distribution is known by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lastword.calibration.ratios import Calibration
from lastword.canvas.tokens import TokenIds
from lastword.errors import PromptError, SettingError
from lastword.models.storage import RowStorage
from lastword.validation import check_number

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Letters:
    """The toy's tokenizer: one id per small letter and the space."""

    bos = None
    chat_template = None

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text.lower()) - set(LETTERS))
        if unknown:
            raise PromptError(
                f"the toy model spells with small letters and spaces only and cannot read {unknown[0]!r}; "
                "take tiny-llada-base (--model) for other text"
            )
        return [LETTERS.index(letter) for letter in text.lower()]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        special = "" if skip_special else "?"
        return "".join(LETTERS[i] if i < len(LETTERS) else special for i in ids)

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        raise PromptError(
            f"the toy model has no chat template for these {len(messages)} messages; give it plain text"
        )


class Toy:
    """Says the next letter of the alphabet, and ends with probability `hazard` at every position.

    The hazard is the same everywhere, so the expected length over T slots is known by hand:
    (1 - (1 - hazard)**T) / hazard. Which position is surest varies, so that rules have a choice.

    >>> import lastword
    >>> toy = lastword.Toy(hazard=0.25)
    >>> lengths = lastword.predict_length(toy, "abc", limit=100)
    >>> round(lengths.mean.item(), 6)
    4.0
    """

    ids = TokenIds(mask=len(LETTERS), end=len(LETTERS) + 1, pad=len(LETTERS) + 1, vocab_size=len(LETTERS) + 2)
    max_seq_len = 2**31
    default_max_new_tokens = 64
    device = torch.device("cpu")
    tokenizer = Letters()
    supports_cache = False

    def __init__(self, hazard: float = 0.05) -> None:
        check_number("Toy", "hazard", hazard, minimum=0, below=1)
        self.hazard = hazard
        self.name = f"toy {hazard}"
        self.calibration: Calibration | None = None

    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,
        stale: Tensor | None = None,
        memory: RowStorage | None = None,
    ) -> Tensor:  # [B, S, V]
        if memory is not None or stale is not None:
            raise SettingError("the toy keeps no keys and values; decode with cache=NoCache()")
        letters = len(LETTERS)
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        position = valid.cumsum(-1) - 1
        # A mask to the left says nothing, so the guess falls back on the position.
        left = torch.nn.functional.pad(tokens, (1, 0))[:, :-1]
        guess = torch.where(left < letters, left + 1, position) % letters
        sureness = 0.4 + 0.5 * torch.frac(position.double() * 0.618)
        rest = (1 - self.hazard) * (1 - sureness) / (letters - 1)
        chance = rest[..., None].repeat(1, 1, self.ids.vocab_size)
        chance.scatter_(2, guess[..., None], ((1 - self.hazard) * sureness)[..., None])
        chance[..., self.ids.mask] = 1e-12
        chance[..., self.ids.end] = self.hazard
        return chance.log().gather(1, read[..., None].expand(-1, -1, self.ids.vocab_size))
