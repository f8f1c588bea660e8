"""Window: a span of columns per row."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.columns import counted


@dataclass(frozen=True, eq=False)
class Window:
    """A span of columns per row, [first, last); empty for a row with nothing left to do."""

    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]
    _masks: dict[int, Tensor] = field(
        default_factory=dict, init=False, repr=False
    )  # by width, as they are asked

    def columns(self, width: int) -> Bool[Tensor, "B L"]:
        """The window as a mask. Parts ask for it several times a pass, mostly as wide."""
        if width not in self._masks:
            column = counted(width, self.first.device)
            self._masks[width] = (column >= self.first[:, None]) & (column < self.last[:, None])
        return self._masks[width]
