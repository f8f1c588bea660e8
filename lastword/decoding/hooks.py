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
    """Functions that are called around every forward pass.

    `logits(step, canvas, columns, logits)` returns the logits [A, S, V] to use instead, where A are the rows
    that participate (`columns.rows`) and S the columns read in each (`columns.index`).

    `tokens(step, canvas)` returns the tokens [B, L] to continue with. It is called with step None before the
    first pass and then after every pass. It may rewrite answers; changes to prompts are ignored.
    """

    logits: LogitsHook | None = None
    tokens: TokensHook | None = None

    def __post_init__(self) -> None:
        if self.logits is not None:
            check_callable("Hooks", "logits", self.logits, ("step", "canvas", "columns", "logits"))
        if self.tokens is not None:
            check_callable("Hooks", "tokens", self.tokens, ("step", "canvas"))

    @classmethod
    def check(cls, owner: str, value: object) -> None:
        """Raise WrongTypeError for anything but Hooks, such as a bare function."""
        expected = "lastword.Hooks(logits=function) or lastword.Hooks(tokens=function)"
        check_type(owner, "hooks", value, cls, expected)

    def after(self, step: int | None, canvas: Canvas) -> Canvas:
        """Return the canvas after the tokens hook, if there is one."""
        if self.tokens is None:
            return canvas
        tokens = self.tokens(step, canvas)
        shape, vocab_size = canvas.tokens.shape, canvas.ids.vocab_size
        is_tensor = is_plain_tensor(tokens)
        if not is_tensor or (tokens.shape, tokens.dtype) != (shape, torch.long):
            returned = f"{tokens.dtype} {tuple(tokens.shape)}" if is_tensor else short_repr(tokens)
            raise WrongTypeError(
                f"the tokens hook returned {returned}; it must return tokens of shape {tuple(shape)} and "
                "dtype "
                "torch.int64"
            )
        changed = canvas.replace_answer(tokens.to(canvas.device))
        outside = changed.tokens[(changed.tokens < 0) | (changed.tokens >= vocab_size)]
        if len(outside):
            raise SettingError(
                f"the tokens hook wrote id {int(outside[0])}; the ids of the model are 0 to {vocab_size - 1}"
            )
        return changed
