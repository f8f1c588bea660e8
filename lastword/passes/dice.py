"""Dice: one random generator per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


class Dice:
    """One random generator per row, so that a row draws the same numbers in any batch.

    Rows draw over their own columns, prompt included and padding excluded, in the order the
    authors' loops draw: with one prompt, `Dice([seed])` repeats their runs.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        # Apple's GPU has no float64 noise; its rows draw on the CPU.
        home = "cpu" if torch.device(device).type == "mps" else device
        self._generators = [Generator(home).manual_seed(seed) for seed in seeds]

    def __len__(self) -> int:
        return len(self._generators)

    def uniform(self, row: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = self._generators[row]
        return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)

    def uniform_at(self, where: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """A number for every true column of `where` [B, L], on the CPU; 0 elsewhere.

        Rows draw one by one, and what they drew crosses to the CPU once.
        """
        numbers = torch.zeros(where.shape, dtype=dtype)
        counts = where.sum(-1).tolist()
        drawn = [self.uniform(row, n, dtype=dtype) for row, n in enumerate(counts) if n]
        if drawn:
            numbers[where] = torch.cat(drawn).cpu()
        return numbers

    def choose(self, row: int, weights: Tensor, count: int, *, replace: bool) -> Tensor:
        """`count` indices along the last axis, drawn in proportion to the weights."""
        generator = self._generators[row]
        return torch.multinomial(weights.to(generator.device), count, replace, generator=generator)
