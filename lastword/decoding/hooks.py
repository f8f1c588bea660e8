"""User hooks that change logits or tokens between steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.canvas.tokens import is_plain_tensor
from lastword.errors import SettingError, WrongTypeError
from lastword.validation import check_callable, check_type, short_repr

LogitsHook = Callable[[int, Canvas, Columns, Tensor], Tensor]
TokensHook = Callable[[int | None, Canvas], Tensor]


@dataclass(frozen=True)
class Hooks:
    """`logits(step, canvas, columns, logits)` returns the logits [A, S, V] to use instead.

    A are the rows that took part (`columns.rows`), S the columns read in each (`columns.index`).

    `tokens(step, canvas)` returns the tokens [B, L] to go on with; it is called once with step None
    before the first pass and then after every pass. It may rewrite answers, never prompts.
    """

    logits: LogitsHook | None = None
    tokens: TokensHook | None = None

    def __post_init__(self) -> None:
        if self.logits is not None:
            check_callable("Hooks", "logits", self.logits, ("step", "canvas", "columns", "logits"))
        if self.tokens is not None:
            check_callable("Hooks", "tokens", self.tokens, ("step", "canvas"))

    @classmethod
    def check(cls, owner: str, given: object) -> None:
        """Refuse what is no Hooks, such as a bare function."""
        wanted = "lastword.Hooks(logits=function) or lastword.Hooks(tokens=function)"
        check_type(owner, "hooks", given, cls, wanted)

    def after(self, step: int | None, canvas: Canvas) -> Canvas:
        if self.tokens is None:
            return canvas
        tokens = self.tokens(step, canvas)
        shape, last = canvas.tokens.shape, canvas.ids.vocab_size - 1
        plain = is_plain_tensor(tokens)
        if not plain or (tokens.shape, tokens.dtype) != (shape, torch.long):
            given = f"{tokens.dtype} {tuple(tokens.shape)}" if plain else short_repr(tokens)
            raise WrongTypeError(
                f"the tokens hook returned {given}; it must return tokens of shape {tuple(shape)} and "
                "dtype torch.int64"
            )
        changed = canvas.replace_answer(tokens.to(canvas.device))
        outside = changed.tokens[(changed.tokens < 0) | (changed.tokens > last)]
        if len(outside):
            raise SettingError(
                f"the tokens hook wrote id {int(outside[0])}; the model's ids run from 0 to {last}"
            )
        return changed
