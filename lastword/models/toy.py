"""`Toy`: a model without weights whose length distribution is known in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lastword.canvas.tokens import TokenIds
from lastword.errors import PromptError
from lastword.models.adapter import Adapter
from lastword.validation import check_number

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Letters:
    """The toy's tokenizer: one id per lowercase letter, and one for the space."""

    bos = None
    chat_template = None

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text.lower()) - set(LETTERS))
        if unknown:
            raise PromptError(
                f"the toy model has tokens for letters and spaces only and cannot encode {unknown[0]!r}; "
                "use tiny-llada-base (--model) for other text"
            )
        return [LETTERS.index(letter) for letter in text.lower()]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        special = "" if skip_special else "?"
        return "".join(LETTERS[i] if i < len(LETTERS) else special for i in ids)

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        raise PromptError(f"the toy model has no chat template for these {len(messages)} messages; give it plain text")


class Toy(Adapter):
    """A model that predicts the next letter of the alphabet, and an end token with probability `hazard` per slot.

    The hazard is constant, so the expected length over T slots is (1 - (1 - hazard)**T) / hazard. The confidence
    depends on the position, so that unmask rules can rank the slots.

    >>> import lastword
    >>> toy = lastword.Toy(hazard=0.25)
    >>> lengths = lastword.predict_length(toy, "abc", limit=100)
    >>> round(lengths.mean.item(), 6)
    4.0
    """

    ids = TokenIds(mask=len(LETTERS), end=len(LETTERS) + 1, pad=len(LETTERS) + 1, vocab_size=len(LETTERS) + 2)
    tokenizer = Letters()

    def __init__(self, hazard: float = 0.05) -> None:
        check_number("Toy", "hazard", hazard, minimum=0, below=1)
        super().__init__(
            self._logits_of,
            self.ids,
            takes_mask=True,
            default_max_new_tokens=64,
            tokenizer=self.tokenizer,
            name=f"toy {hazard}",
        )
        self.hazard = hazard

    def _logits_of(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # [B, L] -> [B, L, V]
        letters = len(LETTERS)
        position = (torch.ones_like(tokens) if attention_mask is None else attention_mask).cumsum(-1) - 1
        # After a mask, the guess depends on the position alone.
        left = torch.nn.functional.pad(tokens, (1, 0))[:, :-1]
        guess = torch.where(left < letters, left + 1, position) % letters
        confidence = 0.4 + 0.5 * torch.frac(position.double() * 0.618)
        others = (1 - self.hazard) * (1 - confidence) / (letters - 1)
        probabilities = others[..., None].repeat(1, 1, self.ids.vocab_size)
        probabilities.scatter_(2, guess[..., None], ((1 - self.hazard) * confidence)[..., None])
        probabilities[..., self.ids.mask] = 1e-12
        probabilities[..., self.ids.end] = self.hazard
        return probabilities.log()
