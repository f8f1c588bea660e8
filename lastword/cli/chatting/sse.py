"""Server-sent events: lines in, the data of each event out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def events(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of every event, as the standard has it: an empty line ends one, and a colon begins a comment.

    >>> list(events([b": hello", b"data: one", b"data: line", b"", b"event: x", b"", b"data:two", b""]))
    ['one\\nline', 'two']
    """
    data: list[str] = []
    for line in lines:
        text = line.decode("utf-8", errors="replace").rstrip("\r\n")
        if not text and data:
            yield "\n".join(data)
            data = []
        name, _, value = text.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
