"""The nearest rising curve: isotonic regression by pooling neighbours that fall."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rising(values: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row's least-squares fit among the sequences that never fall. It keeps the row's sum.

    >>> import torch
    >>> rising(torch.tensor([[0.0, 0.4, 0.2, 1.0]])).tolist()[0][1:3]
    [0.30000001192092896, 0.30000001192092896]
    """
    return torch.stack([_rising(row) for row in values]) if len(values) else values.clone()


def _rising(row: Tensor) -> Tensor:
    sums: list[float] = []
    counts: list[int] = []
    for value in row.tolist():
        total, count = value, 1
        while sums and sums[-1] * count >= total * counts[-1]:  # the pool before is no lower
            total, count = total + sums.pop(), count + counts.pop()
        sums.append(total)
        counts.append(count)
    pools = torch.tensor(sums, dtype=row.dtype) / torch.tensor(counts, dtype=row.dtype)
    return pools.repeat_interleave(torch.tensor(counts))
