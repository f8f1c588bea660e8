"""Validation of data from files and requests (pydantic)."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from lastword.validation import MAX_COUNT, MAX_REPR_LENGTH, MAX_SEED, MAX_SLOTS, MIN_SEED, short_repr

Value = TypeVar("Value")

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # "3" and True are not numbers
IGNORE_EXTRA = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)  # for files that other programs write

Text = Annotated[str, Field(max_length=1_000)]
MAX_TEXT_LENGTH = 10**7  # characters of an answer
LongText = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
SlotCount = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
PositiveSlots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]
Share = Annotated[float, Field(ge=0, le=1)]

MAX_FILE_BYTES = 100 * 2**20  # maximal size of a JSON file of lastword or a checkpoint
UTF8_MARK = b"\xef\xbb\xbf"


def read_bytes(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file; raise ValueError if it is not a regular file or too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"it has {status.st_size} bytes, and at most {max_bytes} are read")
    return path.read_bytes()


def parse_json(data: bytes | str) -> Any:
    """Return parsed JSON; raise ValueError for invalid JSON, NaN, Infinity and too deep nesting."""
    content = data.encode() if isinstance(data, str) else data
    return from_json(content.removeprefix(UTF8_MARK), allow_inf_nan=False)


def parse_json_object(data: bytes | str) -> dict[str, Any]:
    """Return a parsed JSON object; raise ValueError if a field is repeated or a number is infinite.

    The document is parsed twice, so use the faster `parse_json` for the lines of a journal.
    """
    content = (data.encode() if isinstance(data, str) else data).removeprefix(UTF8_MARK)
    if not isinstance(parse_json(content), dict):
        raise ValueError("it must be an object")
    document: dict[str, Any] = json.loads(content, object_pairs_hook=_unique_fields, parse_float=_finite)
    return document


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise OSError or ValueError if it has none."""
    return parse_json_object(read_bytes(path))


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the field {short_repr(name)} twice")
        fields[name] = value
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {short_repr(digits)} is too large")
    return number


@cache
def _adapter(kind: Any) -> Any:
    return TypeAdapter(kind)


def validate(kind: type[Value], data: object) -> Value:
    """Return data as a value of a pydantic type; raise ValueError with the first wrong field."""
    try:
        value: Value = _adapter(kind).validate_python(data)  # type: ignore[arg-type]  # hashable
        return value
    except ValidationError as error:
        raise ValueError(error_reason(error)) from error


def error_reason(error: ValidationError) -> str:
    """Return text with the name of the first wrong field, the reason and the given value."""
    field, details = first_error(error.errors(include_url=False))
    return f"{field or 'a line'}: {details['msg']} (given: {short_repr(details['input'])})"


def first_error(errors: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the first wrong field and its details, given the `errors()` of a ValidationError."""
    details = errors[0]
    field = ".".join(str(step) for step in details["loc"] if step not in ("answer", "drift"))
    return (field if field.isprintable() and len(field) <= MAX_REPR_LENGTH else short_repr(field)), details
