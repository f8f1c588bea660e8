"""Checks of the values that parts return; each error names the part, its method and the contract.

Types, shapes, dtypes and devices are checked in every step, which takes microseconds. Checks of numbers wait for the
device, so they run once per request, or when a part returns another canvas than it was given.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from lastword.canvas.canvas import Canvas, RowSpans, State
from lastword.canvas.tokens import check_tensor, is_plain_tensor
from lastword.errors import SettingError, WrongTypeError
from lastword.validation import MAX_SLOTS, check_choice, check_fields, short_repr


def name_of(part: object, method: str) -> str:
    """Return the name of a part's method for a message."""
    return f"{type(part).__name__}.{method}"


def check_returned(owner: str, value: object, kind: type, expected: str) -> None:
    """Raise WrongTypeError unless a part returned an instance of a class; `expected` describes it in the message."""
    if not isinstance(value, kind):
        raise WrongTypeError(
            f"{owner} returned {short_repr(value)}, a {type(value).__name__}; it must return {expected}"
        )


def call_part(part: object, method: str, *arguments: object, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor that a method of a part returns, checked to have the shape and the device of `like`."""
    returned = getattr(part, method)(*arguments)
    return check_tensor(f"{name_of(part, method)} returned", returned, like.shape, dtype, like.device)


def check_traits(part: Any, kind: type) -> None:
    """Raise an error unless the traits of a part are a valid instance of `kind`."""
    check_returned(name_of(part, "traits"), part.traits, kind, f"an instance of {kind.__name__}")
    check_fields(part.traits)
    for field in fields(part.traits):
        if isinstance(field.default, bool):
            check_choice(kind.__name__, field.name, getattr(part.traits, field.name), True, False)


def check_unchanged(owner: str, tensor: Tensor, version: int) -> None:
    """Raise SettingError if a tensor was changed in place since `version_of` returned `version`."""
    if version_of(tensor) != version:
        raise SettingError(f"{owner} changed a tensor in place that it was given; change a copy (tensor.clone())")


def version_of(tensor: Tensor) -> int:
    """Return a number that changes when a tensor is changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def check_state(owner: str, state: object, rows: int) -> None:
    """Raise WrongTypeError unless a first state is () or a tuple of tensors whose first axis is the rows."""
    if not isinstance(state, tuple) or not all(is_plain_tensor(t) and t.ndim and len(t) == rows for t in state):
        raise WrongTypeError(
            f"{owner} returned the state {short_repr(state)}; a state must be () or a NamedTuple of tensors with one "
            f"entry per row ({rows} here)"
        )


def result_and_state(owner: str, returned: object, before: State) -> tuple[Any, State]:
    """Return the result and the state that a part returned; the state has the structure of the state before."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise WrongTypeError(f"{owner} returned {short_repr(returned)}; it must return a pair, a result and the state")
    result, state = returned
    if state is not before and not (
        isinstance(state, tuple)
        and len(state) == len(before)
        and all(isinstance(new, Tensor) and _kind(new) == _kind(old) for new, old in zip(state, before))
    ):
        raise WrongTypeError(
            f"{owner} returned the state {short_repr(state)}; its tensors must have the dtypes, devices and rows of "
            f"those in the state that it was given, {short_repr(before)}"
        )
    return result, state


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.layout, tensor.ndim, tensor.shape[:1]


def check_canvas(owner: str, returned: object, before: Canvas, *, may_resize: bool = False) -> Canvas:
    """Return a part's canvas; raise an error unless it is valid, with the rows and prompts of the canvas before."""
    if returned is before:
        return before
    canvas: Any = returned
    check_returned(owner, canvas, Canvas, "a canvas")
    check_returned(f"{owner}, as the spans of its canvas,", canvas.spans, RowSpans, "those of a canvas")
    shape = torch.Size((len(before.tokens), canvas.width))
    expected = {"tokens": (shape, torch.long), "abandoned": (shape, torch.bool)}
    expected |= dict.fromkeys(("horizon", "suffix", "prompt_length"), (before.horizon.shape, torch.long))
    for name, (size, dtype) in expected.items():
        check_tensor(f"{owner} returned a canvas with {name}", getattr(canvas, name), size, dtype, before.device)
    same = canvas.ids == before.ids and (canvas.start, canvas.static) == (before.start, before.static)
    if same and not canvas.static:
        slots, suffix, tokens = canvas.horizon, canvas.suffix, canvas.tokens
        wrong = (slots < 1) | (slots > MAX_SLOTS) | (canvas.start + slots > canvas.width) | (suffix < 0)
        wrong |= (suffix > slots) | (canvas.prompt_length != before.prompt_length)
        wrong |= ((tokens < 0) | (tokens >= canvas.ids.vocab_size)).any(-1)
        same = not bool(wrong.any()) and (may_resize or torch.equal(slots, before.horizon))
    if not same:
        resized = f"1 to {MAX_SLOTS} slots per row" if may_resize else "the same slots"
        raise SettingError(
            f"{owner} returned a canvas with other prompts, or with slots or token ids out of range; it must return "
            f"the canvas, or a result of its methods, with {resized} and ids of the vocabulary"
        )
    return canvas
