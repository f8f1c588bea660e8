"""Special token ids of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor

from lastword.errors import SettingError
from lastword.validation import check_int, check_list

MAX_VOCAB_SIZE = 2**31

# The token ids of one prompt.
PromptIds = Sequence[int] | Tensor


def is_plain_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a dense tensor with data: not sparse, nested or on the meta device."""
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout == torch.strided
        and value.device.type != "meta"
    )


@dataclass(frozen=True)
class TokenIds:
    """Special token ids of a checkpoint and the size of its vocabulary.

    `end` closes a document and, in most checkpoints, also fills the slots after it. A chat model may close its turn
    with one of `turn_ends` instead. Each of these tokens ends an answer.
    """

    mask: int
    end: int
    pad: int
    vocab_size: int
    turn_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_int("TokenIds", "vocab_size", self.vocab_size, minimum=1, maximum=MAX_VOCAB_SIZE)
        check_list("TokenIds", "turn_ends", self.turn_ends, "a tuple of token ids")
        object.__setattr__(self, "turn_ends", tuple(self.turn_ends))
        names = [("mask", self.mask), ("end", self.end), ("pad", self.pad)]
        for name, value in [*names, *(("turn_ends", value) for value in self.turn_ends)]:
            check_int("TokenIds", name, value, minimum=0, maximum=self.vocab_size - 1)
        if self.mask in (self.end, self.pad, *self.turn_ends):
            raise SettingError(
                f"the mask id {self.mask} is also an end or pad id, so filled slots would count as masks; use a "
                "different mask id"
            )

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """All ids that end an answer, without duplicates, the document end first."""
        return tuple(dict.fromkeys((self.end, *self.turn_ends)))
