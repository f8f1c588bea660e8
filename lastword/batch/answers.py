"""Answers: the file that lines are appended to as they come, and which prompts have one already."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lastword.batch.answered import Answering, place_of
from lastword.io.files import replacing
from lastword.io.journal import NEWLINE, JournalFile
from lastword.io.schema import parse_json


class Answers:
    """An append-only file of one run's lines, each prompt's once, written by one process at a time.

    A last line that was cut is dropped, or ended if only its end is missing. Where each line begins is
    known, its content is not held. `claim` is told whether the file is new before it is read, and may refuse.
    """

    def __init__(
        self, path: Path, answering: Answering, claim: Callable[[bool], None] = lambda is_new: None
    ) -> None:
        self.path, self._answering, self._claim = path, answering, claim
        self._journal = JournalFile(path, kind="answers of this run", remedy="give another file (--out)")
        self.failed: set[int] = set()
        self.done: set[int] = set()
        self._order = array("q")  # indices, as their lines stand in the file
        self._begin = array("q")  # and where those begin

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the file, alone; what is in it is known then."""
        with self._journal.writing():
            self._claim(self._journal.is_empty())
            self._end = 0
            self._journal.recover(self._read, self._is_torn)
            yield

    def append(self, lines: Sequence[tuple[int, bytes, bool]]) -> None:
        """Write lines for good, all or none: an index, what is written, and whether it failed."""
        if not lines:
            return
        self._journal.append(b"".join(line + NEWLINE for _, line, _ in lines))
        for index, line, failed in lines:
            self._note(index, len(line) + 1, failed)

    def read(self) -> Iterator[Any]:
        """Every line as data, in the order of the prompts."""
        with self.path.open("rb") as file:
            for line in self._in_order(file):
                yield parse_json(line)

    def sort(self) -> None:
        """Put the lines in the order of the prompts, if they are not; the file is replaced whole."""
        order = self._order
        if any(order[at] > order[at + 1] for at in range(len(order) - 1)):
            with self.path.open("rb") as file, replacing(self.path) as sorted_file:
                for line in self._in_order(file):
                    sorted_file.write(line)

    def _in_order(self, file: Any) -> Iterator[bytes]:
        for at in sorted(range(len(self._order)), key=self._order.__getitem__):
            file.seek(self._begin[at])
            yield file.readline()

    def _note(self, index: int, length: int, failed: bool) -> None:
        self._order.append(index)
        self._begin.append(self._end)
        self._end += length
        self.done.add(index)
        if failed:
            self.failed.add(index)

    def _read(self, line: bytes) -> None:
        """Note a line of the file; ValueError if it is not a line of this run."""
        place = place_of(parse_json(line), self._answering.form)
        if place.run != self._answering.run:
            raise ValueError(f"it belongs to the run {place.run}, and this is {self._answering.run}")
        if place.index in self.done:
            raise ValueError(f"it is the second line of prompt {place.index}")
        self._note(place.index, len(line) + 1, place.failed)

    def _is_torn(self, line: bytes) -> bool:
        """Return whether bytes are the beginning of a line of this run."""
        beginning = self._answering.beginning
        return line[: len(beginning)] == beginning[: len(line)]
