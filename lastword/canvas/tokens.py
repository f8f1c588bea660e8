"""Special token ids of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor

from lastword.errors import SettingError, WrongTypeError
from lastword.validation import check_int, check_list, short_repr

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


FLOAT_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
CONTENTS = {torch.bool: "truth values (torch.bool)", torch.long: "whole numbers (torch.int64)"}


def check_tensor(
    owner: str,
    value: object,
    shape: torch.Size,
    dtypes: torch.dtype | Collection[torch.dtype],
    device: torch.device | None = None,
    contents: str = "",
) -> Tensor:
    """Return a value; raise WrongTypeError unless it is a plain tensor of this shape, dtype and device."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    is_plain = is_plain_tensor(value)
    if not is_plain and device is not None and device.type == "meta":
        is_plain = isinstance(value, Tensor) and value.device == device  # a part is traced without numbers
    fits = is_plain and isinstance(value, Tensor) and value.shape == shape and value.dtype in allowed
    if isinstance(value, Tensor) and fits and device in (None, value.device):
        return value
    described = short_repr(value)
    if isinstance(value, Tensor):
        described = f"{value.dtype} {tuple(value.shape)} on {value.device.type}"
        described += "" if is_plain else " (a sparse, nested or meta tensor)"
    contents = contents or " or ".join(CONTENTS.get(dtype, str(dtype)) for dtype in allowed)
    place = "" if device is None else f" on {device.type}"
    raise WrongTypeError(f"{owner} {described}; it must be a tensor of {contents} of shape {tuple(shape)}{place}")


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
