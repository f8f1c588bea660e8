"""Logits: what a pass says of every token of the vocabulary, made when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

# Logits are made and lifted to float32 (or float64) this many numbers at a time: 128 MB, not gigabytes.
NUMBERS_AT_ONCE = 2**25
EVEN = 256  # columns: many are made by multiples of so many


class Logits:
    """Logits [A, S, V] of the rows that took part, from states [A, S, W] and the head that reads them.

    Few columns make all of them at once, and they are kept. Of many, such as a probe's, a GPU takes its
    views a few columns at a time, and the whole is made only for whoever needs it: 1024 columns of a
    126k vocabulary are 260 MB in bf16.

    States may be those of the columns that are read alone, [1, N, W]; `packed` [A, S] says which is whose.
    """

    def __init__(
        self,
        states: Tensor,
        head: Callable[[Tensor], Tensor],
        vocabulary: int,
        packed: Tensor | None = None,
    ) -> None:
        self.made_of = states.shape[:2]
        self.shape = (*(self.made_of if packed is None else packed.shape), vocabulary)
        self._states, self._head, self._packed = states, head, packed

    @classmethod
    def of(cls, logits: Tensor) -> Logits:
        """Those a model returned."""
        return cls(logits, lambda same: same, logits.shape[-1])

    @property
    def device(self) -> torch.device:
        return self._states.device

    @cached_property
    def whole(self) -> Tensor:  # [A, S, V]
        return self.spread(self._made)

    @cached_property
    def _made(self) -> Tensor:  # [N, V]
        return self._head(self._states).flatten(0, 1)

    def spread(self, made: Tensor) -> Tensor:  # [N, ...] -> [A, S, ...]
        """What was made of every state, at the columns that are read."""
        if self._packed is None:
            return made.view(*self.made_of, *made.shape[1:])
        return made[self._packed]

    def parts(self) -> Iterator[Tensor]:  # [n, V]
        """Of all states, a few at a time."""
        at_once = max(1, NUMBERS_AT_ONCE // self.shape[-1])
        if at_once > EVEN:  # a product of a few columns more takes a whole tile more
            at_once -= at_once % EVEN
        many = self.device.type == "cuda" and self.made_of.numel() > at_once
        if "_made" in self.__dict__ or not many:
            yield from torch.split(self._made, at_once)
            return
        for states in torch.split(self._states.flatten(0, 1), at_once):
            yield self._head(states[None])[0]
