"""Muon (Jordan et al., 2024): momentum whose every step is an orthogonal matrix.

At this size it reaches a given loss in clearly fewer steps than AdamW, and the matrices are so
small that making a step orthogonal costs next to nothing when equal shapes are stacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

# The quintic whose iteration drives all singular values into (0.7, 1.2): close to 1 is enough.
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """For matrices only; a step has about the spectral norm `lr`."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            ordered = sorted(group["params"], key=lambda p: tuple(p.shape))
            for shape, same in groupby(ordered, key=lambda p: tuple(p.shape)):
                self._move(list(same), shape, group)

    def _move(self, params: list[nn.Parameter], shape: tuple[int, ...], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]  # every matrix is used in every pass
        for p in params:
            self.state[p].setdefault("moment", torch.zeros_like(p))
        moments = [self.state[p]["moment"] for p in params]
        torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, moments, group["momentum"])  # Nesterov's look ahead
        steps = orthogonal(torch.stack(ahead)).to(params[0].dtype)
        rows, columns = shape
        size = group["lr"] * max(1.0, rows / columns) ** 0.5
        weights: list[Tensor] = [*params]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(steps.unbind()), alpha=-size)


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:  # [N, rows, columns]
    """The nearest orthogonal matrix of each, roughly, by Newton-Schulz; bf16 suffices on a GPU."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.mT if tall else x
