"""Window: a span of columns per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Window:
    """A span of columns per row, [first, last); empty for a row with nothing left to do."""

    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]

    def columns(self, width: int) -> Bool[Tensor, "B L"]:
        """The window as a mask. Rules and policies ask for it several times a pass, mostly as wide."""
        known = self.__dict__.setdefault("_columns", {})
        if width not in known:
            column = torch.arange(width)
            known[width] = (column >= self.first[:, None]) & (column < self.last[:, None])
        return known[width]
