"""Compressed JSON lines: a first line with what all records share, then a line per record."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lastword.io.files import check_folder, write

SUFFIX = ".jsonl.xz"
Line = dict[str, Any]


def write_lines(path: Path, head: Line, records: Iterable[Line]) -> Path:
    """Write a file, which `read_lines` reads."""
    lines = [json.dumps(line, separators=(",", ":")) for line in (head, *records)]
    content = lzma.compress("\n".join(lines).encode(), preset=6 | lzma.PRESET_EXTREME)
    if not path.exists() or path.read_bytes() != content:
        check_folder(path.parent)
        write(path, content)
    return path


def read_lines(path: Path) -> tuple[Line, list[Line]]:
    """Return the first line of a file and its records."""
    head, *records = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    return head, records
