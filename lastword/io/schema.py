"""Validation of data from files and requests (pydantic)."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from lastword.validation import (
    MAX_COUNT,
    MAX_REPR_LENGTH,
    MAX_SEED,
    MAX_SLOTS,
    MIN_SEED,
    short_repr,
)

Value = TypeVar("Value")

# Strict: "3" and True are no numbers; nothing unknown; no NaN or Infinity.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
# The same for files of others, which say more than we read.
IGNORE_EXTRA = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

Text = Annotated[str, Field(max_length=1_000)]
MAX_TEXT_LENGTH = 10**7  # letters of an answer
LongText = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
SlotCount = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
PositiveSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]
Share = Annotated[float, Field(ge=0, le=1)]

MAX_FILE_BYTES = 100 * 2**20  # of a JSON file of ours or of a checkpoint
UTF8_MARK = b"\xef\xbb\xbf"


def read_bytes(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """A file's content; OSError if it cannot be read, ValueError if it is no file or too large."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no plain file")
    if found.st_size > max_bytes:
        raise ValueError(f"it has {found.st_size} bytes, and at most {max_bytes} are read")
    return path.read_bytes()


def parse_json(data: bytes | str) -> Any:
    """JSON as data: no NaN, no Infinity, no bottomless nesting. ValueError says what is wrong."""
    content = data.encode() if isinstance(data, str) else data
    return from_json(content.removeprefix(UTF8_MARK), allow_inf_nan=False)


def parse_json_object(data: bytes | str) -> dict[str, Any]:
    """A document of one JSON object, in which no field stands twice and no number is out of reach.

    It is read twice, so lines of a journal go through `parse`.
    """
    if not isinstance(parse_json(data), dict):
        raise ValueError("it must be an object")
    document: dict[str, Any] = json.loads(
        data.removeprefix(UTF8_MARK) if isinstance(data, bytes) else data.removeprefix("\ufeff"),
        object_pairs_hook=_each_once,
        parse_float=_finite,
    )
    return document


def read_json_object(path: Path) -> dict[str, Any]:
    """A file of one JSON object; OSError if it cannot be read, ValueError says what is wrong."""
    return parse_json_object(read_bytes(path))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it says {short_repr(name)} twice")
        found[name] = value
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {short_repr(digits)} is out of reach")
    return number


@cache
def _adapter(kind: Any) -> Any:
    return TypeAdapter(kind)


def validate(kind: type[Value], data: object) -> Value:
    """The data as a value of a pydantic type; ValueError names the first field that is wrong."""
    try:
        value: Value = _adapter(kind).validate_python(data)  # type: ignore[arg-type]  # hashable
        return value
    except ValidationError as wrong:
        raise ValueError(error_reason(wrong)) from wrong


def error_reason(wrong: ValidationError) -> str:
    """The first thing that is wrong, with its field and what was given."""
    field, first = first_error(wrong)
    return f"{field or 'a line'}: {first['msg']} (given: {short_repr(first['input'])})"


def first_error(wrong: ValidationError) -> tuple[str, Mapping[str, Any]]:
    """The field that is wrong, and what pydantic says of it."""
    first = wrong.errors(include_url=False)[0]
    field = ".".join(str(step) for step in first["loc"] if step not in ("answer", "drift"))
    return (field if field.isprintable() and len(field) <= MAX_REPR_LENGTH else short_repr(field)), first
