"""Hooks: two places where a caller's own function may step in, as in Dream's sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.errors import SettingError

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

    def after(self, step: int | None, canvas: Canvas) -> Canvas:
        if self.tokens is None:
            return canvas
        tokens = self.tokens(step, canvas)
        if not isinstance(tokens, Tensor) or tokens.shape != canvas.tokens.shape:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise SettingError(
                f"the tokens hook returned {shape}; it must return tokens of shape "
                f"{tuple(canvas.tokens.shape)}"
            )
        return canvas.overwrite(tokens)
