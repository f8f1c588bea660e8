"""Whole numbers by column in few bytes, behind a line that says what they are.

A file is XZ. Inside are a line of JSON with the layout, a line of JSON that is the writer's own, and the
columns one behind the other: little-endian, as narrow as they may be, all low bytes first. The same numbers
make the same bytes.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lastword.io.files import check_folder
from lastword.io.files import write as write_whole

Width = Literal["u1", "i1", "i2", "i4", "i8"]
WIDTHS: tuple[Width, ...] = ("u1", "i1", "i2", "i4", "i8")
Column = NDArray[np.int64]
Numbers = dict[str, Column]
LARGEST = 2**26  # bytes a file may unpack to: a million samples
# Bytes of numbers have no alignment and no letters before them to go by: pb and lc are for text.
FILTERS = [
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 2**20,
        "pb": 0,
        "lc": 0,
    }
]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Widths:
    """How many numbers a column has, and the bytes of one."""

    count: Annotated[int, Field(ge=1, le=10**7)]
    widths: Annotated[dict[str, Width], Field(max_length=100)]


_WIDTHS: TypeAdapter[Widths] = TypeAdapter(Widths)


def pack(header: bytes, columns: Mapping[str, Column]) -> bytes:
    """A line of JSON and columns of the same length, compressed."""
    widths = {name: _width(column) for name, column in columns.items()}
    layout = Widths(len(next(iter(columns.values()))), widths)
    body = [_bytes(column, widths[name]) for name, column in columns.items()]
    data = b"".join([_WIDTHS.dump_json(layout), b"\n", header, b"\n", *body])
    return lzma.compress(data, check=lzma.CHECK_CRC32, filters=FILTERS)


def unpack(data: bytes) -> tuple[bytes, Numbers]:
    """The inverse of `pack`; ValueError says what is wrong."""
    try:
        reader = lzma.LZMADecompressor(memlimit=2**27)
        text = reader.decompress(data, max_length=LARGEST)
    except lzma.LZMAError as broken:
        raise ValueError(f"not XZ, or damaged: {broken}") from broken
    if not reader.eof:
        raise ValueError("it is cut" if reader.needs_input else f"it unpacks to more than {LARGEST} bytes")
    if reader.unused_data:
        raise ValueError("something was added behind its end")
    first, _, rest = text.partition(b"\n")
    header, _, body = rest.partition(b"\n")
    try:
        layout = _WIDTHS.validate_json(first)
    except ValidationError as wrong:
        raise ValueError(f"its first line is no layout ({wrong.errors()[0]['msg']})") from wrong
    return header, _columns(layout, body)


def write(path: Path, data: bytes) -> Path:
    """Write a file, unless it says the same already."""
    if not path.exists() or path.read_bytes() != data:
        check_folder(path.parent)
        write_whole(path, data)
    return path


def _width(column: Column) -> Width:
    """The narrowest that holds every number."""
    least, most = int(column.min()), int(column.max())
    return next(w for w in WIDTHS if np.iinfo(w).min <= least and most <= np.iinfo(w).max)


def _bytes(column: Column, width: Width) -> bytes:
    narrow = column.astype(f"<{width}")
    return narrow.view(np.uint8).reshape(len(narrow), -1).T.tobytes()


def _columns(layout: Widths, body: bytes) -> Numbers:
    sizes = {name: layout.count * int(width[1]) for name, width in layout.widths.items()}
    if sum(sizes.values()) != len(body):
        raise ValueError(f"it says {sum(sizes.values())} bytes of columns and has {len(body)}")
    found, start = {}, 0
    for name, width in layout.widths.items():
        planes = np.frombuffer(body, np.uint8, sizes[name], start).reshape(-1, layout.count)
        found[name] = np.ascontiguousarray(planes.T).view(f"<{width}")[:, 0].astype(np.int64)
        start += sizes[name]
    return found
