"""Schema: how data from outside is read. Types, bounds, size and nesting are checked once, here.

A file, a line or a body is bytes; `parse` makes JSON data of it, and a pydantic type what we expect. What is
wrong comes out as a `ValueError` that says which field, what was given and what is allowed: the caller adds
the file's name and makes its own error of it.
"""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from lastword.checks import LEAST_SEED, MOST_COUNTED, MOST_SEED, MOST_SLOTS, shown

Value = TypeVar("Value")

# Strict: "3" and True are no numbers; nothing unknown; no NaN or Infinity.
CHECKED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
# The same for files of others, which say more than we read.
OPEN = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

Text = Annotated[str, Field(max_length=1_000)]
MOST_TEXT = 10**7  # letters of an answer
LongText = Annotated[str, Field(max_length=MOST_TEXT)]
Seed = Annotated[int, Field(ge=LEAST_SEED, le=MOST_SEED)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
Slots = Annotated[int, Field(ge=0, le=MOST_SLOTS)]
SomeSlots = Annotated[int, Field(ge=1, le=MOST_SLOTS)]
Share = Annotated[float, Field(ge=0, le=1)]

MOST_BYTES = 100 * 2**20  # of a JSON file of ours or of a checkpoint
UTF8_MARK = b"\xef\xbb\xbf"


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """A file's content; OSError if it cannot be read, ValueError if it is no file or too large."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no plain file")
    if found.st_size > most:
        raise ValueError(f"it has {found.st_size} bytes, and at most {most} are read")
    return path.read_bytes()


def parse(data: bytes | str) -> Any:
    """JSON as data: no NaN, no Infinity, no bottomless nesting. ValueError says what is wrong."""
    if isinstance(data, bytes):
        data = data.removeprefix(UTF8_MARK)
    return from_json(data, allow_inf_nan=False)


@cache
def _adapter(kind: Any) -> Any:
    return TypeAdapter(kind)


def checked(kind: type[Value], data: object) -> Value:
    """The data as a value of a pydantic type; ValueError names the first field that is wrong."""
    try:
        value: Value = _adapter(kind).validate_python(data)  # type: ignore[arg-type]  # hashable
        return value
    except ValidationError as wrong:
        raise ValueError(reason(wrong)) from wrong


def reason(wrong: ValidationError) -> str:
    """The first thing that is wrong, with its field and what was given."""
    first = wrong.errors(include_url=False)[0]
    field = ".".join(str(step) for step in first["loc"] if step not in ("answer", "drift"))
    return f"{field or 'a line'}: {first['msg']} (given: {shown(first['input'])})"
