"""The file of answers of a batch, in the format of one run."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from lastword.batch.lines import PlainOutput
from lastword.batch.openai_format import OpenAIOutput
from lastword.io.files import NEWLINE, JournalFile, replacing
from lastword.io.schema import parse_json

SORTED_AT_ONCE = 2**24  # lines whose offsets are in memory while the file is sorted
ANSWERED, FAILED = 1, 2  # the status of a prompt; 0 without a line

Output = PlainOutput | OpenAIOutput


class AnswerFile:
    """The lines of one run in an open journal, at most one per prompt; a byte per prompt is in memory."""

    def __init__(self, journal: JournalFile, output: Output, num_prompts: int) -> None:
        self.path, self._journal, self.output = journal.path, journal, output
        self._status = bytearray(num_prompts)
        self._last, self._is_sorted = -1, True
        prefix = output.prefix
        journal.recover(self._read, lambda line: line[: len(prefix)] == prefix[: len(line)])

    def __contains__(self, index: int) -> bool:
        return bool(self._status[index])

    def count(self, status: int | None = None, end: int | None = None) -> int:
        """Return the number of lines with a status, or of all lines, of the first `end` prompts."""
        end = len(self._status) if end is None else end
        return end - self._status.count(0, 0, end) if status is None else self._status.count(status, 0, end)

    def append(self, lines: Sequence[tuple[int, bytes, bool]]) -> None:
        """Write lines to disk, all or none; a line has an index, its content, and whether the answer failed."""
        self._journal.append(b"".join(line + NEWLINE for _, line, _ in lines))
        for index, _, failed in lines:
            self._note(index, failed)

    def sorted_lines(self) -> Iterator[bytes]:
        """Yield the lines in the order of the prompts."""
        for first in range(0, len(self._status), SORTED_AT_ONCE):
            offsets = array("q", [-1]) * min(SORTED_AT_ONCE, len(self._status) - first)
            with self.path.open("rb") as file:
                position = 0
                for line in file:
                    _, index, _ = self.output.read(parse_json(line))
                    if 0 <= index - first < len(offsets):
                        offsets[index - first] = position
                    position += len(line)
                for offset in offsets:
                    if offset >= 0:
                        file.seek(offset)
                        yield file.readline()

    def sort(self) -> None:
        """Rewrite the file with its lines in the order of the prompts, unless they are in order."""
        if not self._is_sorted:
            with replacing(self.path) as file:
                file.writelines(self.sorted_lines())

    def _note(self, index: int, failed: bool) -> None:
        self._status[index] = FAILED if failed else ANSWERED
        self._is_sorted &= index > self._last
        self._last = index

    def _read(self, line: bytes) -> None:
        """Note a line; raise ValueError if it is not a line of this run."""
        run, index, failed = self.output.read(parse_json(line))
        if run != self.output.run:
            raise ValueError(f"it belongs to the run {run}, and this is {self.output.run}")
        if index >= len(self._status):
            raise ValueError(f"there is no prompt {index}")
        if self._status[index]:
            raise ValueError(f"it is the second line of prompt {index}")
        self._note(index, failed)
