"""State: what a part carries from step to step, handed in and returned."""

from __future__ import annotations

from torch import Tensor

# A NamedTuple of tensors whose first axis is the rows, so that rows can be taken and replaced; or ().
State = tuple[Tensor, ...]
