"""Special token ids of a model and conversion of user input to token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeGuard

import torch
from torch import Tensor

from lastword.errors import SettingError, WrongTypeError
from lastword.validation import MAX_SLOTS, check_int, check_list, is_list, short_repr

MAX_END_IDS = 2**31  # of a vocabulary

# The token ids of one prompt.
PromptIds = Sequence[int] | Tensor


def as_token_id(value: object) -> int:
    """A whole number of any library as a plain int. Truth values are no ids, whatever Python says."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError("a truth value is no token id")
    if getattr(value, "ndim", 0):
        raise TypeError("an array is no token id, even one that holds a single number")
    return operator.index(value)  # type: ignore[arg-type]


def is_array(value: object) -> bool:
    """A tensor, or an array of another library."""
    return hasattr(value, "dtype") and hasattr(value, "tolist")


def is_plain_tensor(value: object) -> TypeGuard[Tensor]:
    """A tensor of numbers that lie side by side: not sparse, not nested, not of shapes alone."""
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout == torch.strided
        and value.device.type != "meta"
    )


def as_token_ids(values: object) -> list[int]:
    """One prompt's ids as plain ints; TypeError says what is none.

    A list, a tensor or an array: bytes and sets hold whole numbers as well, but nobody means ids by them.
    """
    if is_array(values):
        values = values.tolist()  # type: ignore[attr-defined]
    if not is_list(values):
        raise TypeError(f"a {type(values).__name__} is no list of token ids")
    values = list(islice(values, MAX_SLOTS + 1))  # a range may have no end that len() knows
    if len(values) > MAX_SLOTS:
        raise ValueError(f"it has more than {MAX_SLOTS} of them")
    plain = set(map(type, values)) == {int}  # nearly always: looking at each takes longer
    return values if plain else [as_token_id(value) for value in values]


@dataclass(frozen=True)
class TokenIds:
    """Special ids of one checkpoint, and how many ids its vocabulary has.

    `end` closes a document and, in most checkpoints, also fills what lies behind it. A chat model
    may close its turn with other tokens first: `turn_ends`. Any of them ends an answer.
    """

    mask: int
    end: int
    pad: int
    vocab_size: int
    turn_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_int("TokenIds", "vocab_size", self.vocab_size, minimum=1, maximum=MAX_END_IDS)
        check_list("TokenIds", "turn_ends", self.turn_ends, "a tuple of token ids")
        object.__setattr__(self, "turn_ends", tuple(self.turn_ends))
        named = [("mask", self.mask), ("end", self.end), ("pad", self.pad)]
        for name, value in [*named, *(("turn_ends", value) for value in self.turn_ends)]:
            if not isinstance(value, int) or isinstance(value, bool):
                raise WrongTypeError(
                    f"token id {name}={short_repr(value)} was given; an id is a whole number"
                )
            if not 0 <= value < self.vocab_size:
                raise SettingError(
                    f"token id {name}={short_repr(value)} lies outside the vocabulary of {self.vocab_size}; "
                    f"give an id from 0 to {self.vocab_size - 1}"
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
