"""Dice: one random generator per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from lastword.canvas.ids import is_array, token_id
from lastword.checks import LEAST_SEED, MOST_SEED, check_sequence, check_whole, shown
from lastword.errors import WrongTypeError
from lastword.models.predictor import checked_device


def checked_seed(owner: str, value: object) -> int:
    """A whole number of any library that a generator takes for a seed."""
    try:
        seed = token_id(value)
    except TypeError as wrong:
        raise WrongTypeError(
            f"{owner}(seed={shown(value)}) was given, of type {type(value).__name__}; a seed must be a whole "
            "number"
        ) from wrong
    check_whole(owner, "seed", seed, least=LEAST_SEED, most=MOST_SEED)
    return seed


def checked_seeds(owner: str, name: str, values: object, wanted: str) -> list[int]:
    """A list or an array of seeds."""
    listed: Any = values.tolist() if is_array(values) else values  # type: ignore[attr-defined]
    check_sequence(owner, name, listed, wanted)
    return [checked_seed(owner, seed) for seed in listed]


class Dice:
    """One random generator per row, so that a row draws the same numbers in any batch.

    Rows draw over their own columns, prompt included and padding excluded, in the order the
    authors' loops draw: with one prompt, `Dice([seed])` repeats their runs.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        # Apple's GPU has no float64 noise; its rows draw on the CPU.
        where = checked_device("Dice", device)
        home = "cpu" if where.type == "mps" else where
        whole = checked_seeds("Dice", "seeds", seeds, "a list of whole numbers, one a row")
        self._generators = [Generator(home).manual_seed(seed) for seed in whole]

    def __len__(self) -> int:
        return len(self._generators)

    def of(self, rows: Sequence[int]) -> Dice:
        """The dice of some rows."""
        own = Dice.__new__(Dice)  # these seeds were checked
        own._generators = [self._generators[row] for row in rows]
        return own

    @classmethod
    def joined(cls, dice: Sequence[Dice]) -> Dice:
        """The dice of several as those of one batch."""
        whole = cls.__new__(cls)
        whole._generators = [generator for own in dice for generator in own._generators]
        return whole

    def uniform(self, row: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = self._generators[row]
        return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)

    def uniform_at(self, where: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """A number for every true column of `where` [B, L]; 0 elsewhere.

        Rows draw one by one, and what they drew crosses to where it is asked for once.
        """
        numbers = torch.zeros(where.shape, dtype=dtype, device=where.device)
        counts = where.sum(-1).tolist()
        drawn = [self.uniform(row, n, dtype=dtype) for row, n in enumerate(counts) if n]
        if drawn:
            numbers[where] = torch.cat(drawn).to(where.device)
        return numbers

    def choose(self, row: int, weights: Tensor, count: int, *, replace: bool) -> Tensor:
        """`count` indices along the last axis, drawn in proportion to the weights."""
        generator = self._generators[row]
        return torch.multinomial(weights.to(generator.device), count, replace, generator=generator)
