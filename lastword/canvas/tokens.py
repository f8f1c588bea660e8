"""Special token ids of a model, and conversion of user input to token ids."""

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

MAX_VOCAB_SIZE = 2**31

# The token ids of one prompt.
PromptIds = Sequence[int] | Tensor


def as_token_id(value: object) -> int:
    """Return an integer of any library as a plain int; raise TypeError for booleans and arrays."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError("a boolean is not a token id")
    if getattr(value, "ndim", 0):
        raise TypeError("an array is not a token id, even if it holds a single number")
    return operator.index(value)  # type: ignore[arg-type]


def is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array of another library."""
    return hasattr(value, "dtype") and hasattr(value, "tolist")


def is_plain_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a dense tensor with data: not sparse, nested or on the meta device."""
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout == torch.strided
        and value.device.type != "meta"
    )


def as_token_ids(values: object) -> list[int]:
    """Return the ids of one prompt as plain ints; raise TypeError or ValueError for anything else.

    Lists, tensors and arrays are accepted. Bytes and sets hold integers as well, but are mistakes.
    """
    if is_array(values):
        values = values.tolist()  # type: ignore[attr-defined]
    if not is_list(values):
        raise TypeError(f"a {type(values).__name__} is not a list of token ids")
    values = list(islice(values, MAX_SLOTS + 1))  # a range may be longer than len() can return
    if len(values) > MAX_SLOTS:
        raise ValueError(f"it has more than {MAX_SLOTS} ids")
    all_ints = set(map(type, values)) == {int}  # nearly always; checking one by one is slower
    return values if all_ints else [as_token_id(value) for value in values]


@dataclass(frozen=True)
class TokenIds:
    """Special token ids of a checkpoint and the size of its vocabulary.

    `end` closes a document and, in most checkpoints, also fills the canvas after it. A chat model may close
    its turn with other tokens first: `turn_ends`. Any of them ends an answer.
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
        named = [("mask", self.mask), ("end", self.end), ("pad", self.pad)]
        for name, value in [*named, *(("turn_ends", value) for value in self.turn_ends)]:
            if not isinstance(value, int) or isinstance(value, bool):
                raise WrongTypeError(
                    f"token id {name}={short_repr(value)} was given; a token id is an integer"
                )
            if not 0 <= value < self.vocab_size:
                raise SettingError(
                    f"token id {name}={short_repr(value)} lies outside the vocabulary of {self.vocab_size}; "
                    f"give an id from 0 to {self.vocab_size - 1}"
                )
        if self.mask in (self.end, self.pad, *self.turn_ends):
            raise SettingError(
                f"the mask id {self.mask} is also an end or pad id, so that filled slots would count as "
                "masks; "
                "give the mask a different id"
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """Every id that ends an answer, the document end first."""
        return tuple(dict.fromkeys((self.end, *self.turn_ends)))
