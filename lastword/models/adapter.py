"""`Adapter`: a model built from any function from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from lastword.calibration import Calibration
from lastword.canvas.tokens import TokenIds
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import (
    DEFAULT_MAX_NEW_TOKENS,
    MAX_SEQ_LEN,
    TextTokenizer,
    all_columns,
    check_device,
    check_logits,
)
from lastword.models.storage import RowStorage
from lastword.validation import check_choice, check_int, check_type, short_repr


class Adapter:
    """A `MaskPredictor` around a function from token ids to logits.

    `forward(tokens)` takes ids [B, L] and returns logits [B, L, V], or an object with `.logits` as Hugging Face models
    do. With `shifted`, the output at a column predicts the token at the next column (Dream). With `takes_mask`, a
    padded batch is one call, `forward(tokens, attention_mask=...)`; without it, its rows are run one by one.
    `default_max_new_tokens` is the limit of the horizon where a recipe sets none. `name` identifies the model, for
    instance in a calibration.
    """

    supports_cache = False

    def __init__(
        self,
        forward: Callable[..., Any],
        ids: TokenIds,
        *,
        shifted: bool = False,
        takes_mask: bool = False,
        max_seq_len: int = 2**31,
        default_max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        device: torch.device | str = "cpu",
        tokenizer: TextTokenizer | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(forward) or isinstance(forward, type):
            raise WrongTypeError(
                f"Adapter({short_repr(forward)}, ...) was given; its first argument must be a function from "
                "token ids [B, L] to logits [B, L, V], or a model that can be called like one"
            )
        check_type("Adapter", "ids", ids, TokenIds, "lastword.TokenIds(mask=..., end=..., ...)")
        for flag, value in (("shifted", shifted), ("takes_mask", takes_mask)):
            check_choice("Adapter", flag, value, True, False)
        check_int("Adapter", "max_seq_len", max_seq_len, minimum=1, maximum=MAX_SEQ_LEN)
        check_int("Adapter", "default_max_new_tokens", default_max_new_tokens, minimum=1)
        expected = "None, or have bos, chat_template, encode, chat and decode (see lastword.TextTokenizer)"
        check_type("Adapter", "tokenizer", tokenizer, (TextTokenizer, NoneType), expected)
        check_type("Adapter", "name", name, (str, NoneType), "text, or None")
        self.ids, self.tokenizer, self.name = ids, tokenizer, name
        self.max_seq_len, self.default_max_new_tokens = max_seq_len, default_max_new_tokens
        self.calibration: Calibration | None = None
        self.device = check_device("Adapter", device)
        self._forward, self._shifted, self._takes_mask = forward, shifted, takes_mask

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor | None = None,  # [B, S]; None: all columns
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,
        storage: RowStorage | None = None,
    ) -> Tensor:  # [B, S, V]
        if storage is not None or stale is not None:
            raise SettingError("the keys and values of this model cannot be stored; decode with cache=NoCache()")
        if read is None:
            all_columns(tokens)  # checks the shape
        if valid is None or bool(valid.all()):
            logits = self._logits(tokens)
        elif self._takes_mask:
            logits = self._logits(tokens, attention_mask=valid.long())
        else:
            logits = self._row_by_row(tokens, valid)
        if read is None:
            return logits
        return logits.gather(1, read[..., None].expand(-1, -1, logits.shape[-1]))

    def _logits(self, tokens: Tensor, **mask: Tensor) -> Tensor:
        """Return logits [B, L, V], each aligned with the column that it predicts."""
        output = self._forward(tokens, **mask)
        first = output[0] if isinstance(output, tuple) and output else output
        logits = check_logits(getattr(first, "logits", first), tokens.shape, self)
        if self._shifted:
            logits = torch.cat((logits[:, :1], logits[:, :-1]), dim=1)
        return logits

    def _row_by_row(self, tokens: Tensor, valid: Tensor) -> Tensor:
        rows = [self._logits(row[columns][None])[0] for row, columns in zip(tokens, valid)]
        logits = rows[0].new_zeros(*tokens.shape, rows[0].shape[-1])
        for row, columns in enumerate(valid):
            logits[row, columns] = rows[row]
        return logits
