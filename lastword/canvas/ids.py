"""The handful of token ids decoding has to know."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lastword.checks import shown
from lastword.errors import SettingError, WrongTypeError

# The token ids of one prompt.
PromptIds = Sequence[int] | Tensor


def token_id(value: object) -> int:
    """A whole number of any library as a plain int. Truth values are no ids, whatever Python says."""
    if isinstance(value, bool):
        raise TypeError("a truth value is no token id")
    return operator.index(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TokenIds:
    """Special ids of one checkpoint, and how many ids its vocabulary has.

    `end` closes a document and, in most checkpoints, also fills what lies behind it. A chat model
    may close its turn with other tokens first: `turn_ends`. Any of them ends an answer.
    """

    mask: int
    end: int
    pad: int
    vocabulary: int
    turn_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        named = [("mask", self.mask), ("end", self.end), ("pad", self.pad)]
        for name, value in [*named, *(("turn_ends", value) for value in self.turn_ends)]:
            if not isinstance(value, int) or isinstance(value, bool):
                raise WrongTypeError(
                    f"token id {name}={shown(value)} was given; an id is a whole number"
                )
            if not 0 <= value < self.vocabulary:
                raise SettingError(
                    f"token id {name}={shown(value)} lies outside the vocabulary of {self.vocabulary}; "
                    f"give an id from 0 to {self.vocabulary - 1}"
                )
        if self.mask in (self.end, self.pad, *self.turn_ends):
            raise SettingError(
                f"the mask id {self.mask} is also an end or pad id, so finished slots would look "
                "like work to do; give the mask an id of its own"
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """Every id that ends an answer; the document end comes first."""
        return tuple(dict.fromkeys((self.end, *self.turn_ends)))
