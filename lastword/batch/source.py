"""Source: what stands in a file of prompts, line by line (.jsonl) or row by row (.parquet)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lastword.batch import parquet
from lastword.errors import PromptError
from lastword.io.files import os_error_reason
from lastword.io.schema import UTF8_MARK, parse_json
from lastword.validation import short_repr

LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet",)
MOST_LINE = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Given:
    """What one line holds, as data, or why it holds none."""

    index: int  # among lines that are not blank, from 0
    where: str  # as a message names it: "line 7"
    data: Any
    wrong: str | None = None


class Source:
    """A file of prompts that is read from its beginning as often as is needed, and must not change."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in LINES + PARQUET:
            raise PromptError(
                f"{path.name} ends in {path.suffix or 'nothing'}; give prompts as .jsonl (a JSON object a "
                "line) or .parquet (a row each)"
            )
        self.path = path
        self._state = self._now()

    def __iter__(self) -> Iterator[Given]:
        self._check()
        is_parquet = self.path.suffix.lower() in PARQUET
        try:
            yield from self._rows() if is_parquet else self._lines()
        except (OSError, ValueError) as broken:
            raise self._unreadable(broken) from broken
        self._check()

    def digest(self) -> str:
        """Of all that stands in it."""
        found = sha256()
        try:
            with self.path.open("rb") as file:
                while some := file.read(2**20):
                    found.update(some)
        except OSError as broken:
            raise self._unreadable(broken) from broken
        return found.hexdigest()

    def _rows(self) -> Iterator[Given]:
        for index, row in enumerate(parquet.rows(self.path)):
            yield Given(index, f"row {index + 1}", row)

    def _lines(self) -> Iterator[Given]:
        index = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE + 1), b""), 1):
                where = f"line {number}"
                if len(line) > MOST_LINE and not line.endswith(b"\n"):
                    while (more := file.readline(MOST_LINE)) and not more.endswith(b"\n"):
                        pass
                    yield Given(
                        index,
                        where,
                        None,
                        f"it has more than {MOST_LINE} bytes, which is all we read",
                    )
                elif not (line := line.removeprefix(UTF8_MARK) if number == 1 else line).strip():
                    continue
                else:
                    yield _parsed(index, where, line)
                index += 1

    def _now(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
            if not self.path.is_file():
                raise ValueError("it is no plain file")
        except (OSError, ValueError) as broken:
            raise self._unreadable(broken) from broken
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _check(self) -> None:
        if self._now() != self._state:
            raise PromptError(
                f"{self.path} was changed while it was read, so that its lines are no longer those that were "
                "asked; give the command again, with another --out"
            )

    def _unreadable(self, broken: Exception) -> PromptError:
        return PromptError(
            f"the prompts in {short_repr(str(self.path))} cannot be read ({os_error_reason(broken)}); "
            "give a .jsonl or "
            ".parquet file that is there"
        )


def _parsed(index: int, where: str, line: bytes) -> Given:
    try:
        return Given(index, where, parse_json(line))
    except ValueError as broken:
        return Given(index, where, None, f"it is not JSON ({broken})")
