"""Incremental detokenization of a partially decoded answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lastword.canvas.tokens import TokenIds
from lastword.errors import NumericError
from lastword.models.base import TextTokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what bytes decode to that are the beginning of a character


class IncrementalDetokenizer:
    """Text before the first mask, the first end token and the first stop string; it only ever grows.

    What could still be the beginning of a character or of a stop string is held back. Of several stop
    strings the first is the one that is complete first, so it does not matter how the text came.
    """

    def __init__(self, tokenizer: TextTokenizer, ids: TokenIds, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._ends, self._mask, self._stop = tokenizer, ids.ends, ids.mask, stop
        self.text = ""  # what was committed
        self.tokens: list[int] = []  # before the first mask and the first end token
        self.stopped: str | None = None  # the stop string that ended it

    def read(self, answer: Sequence[int], *, complete: bool = False) -> str:
        """What can be added, given the canvas of the answer; all of it once that is complete."""
        prefix = self._prefix(answer)
        if self.stopped is not None or (prefix == self.tokens and not complete):
            return ""
        self.tokens = prefix
        text, held = self._tokenizer.decode(prefix), 0
        if not complete:
            text = text.rstrip(REPLACEMENT)
        found = [(text.find(stop) + len(stop), stop) for stop in self._stop if stop in text]
        if found:
            ends, self.stopped = min(found, key=lambda own: (own[0], -len(own[1])))
            text = text[: ends - len(self.stopped)]
        elif not complete:
            held = max((_partial_match(text, stop) for stop in self._stop), default=0)
        if not text.startswith(self.text[: len(text)]):
            raise NumericError(
                "a row that began anew wrote something else than before: what was sent is no longer true"
            )
        more = text[len(self.text) : len(text) - held]
        self.text += more
        return more

    @property
    def count(self) -> int:
        """Tokens of the text: all but those that a stop string cut."""
        if self.stopped is None:
            return len(self.tokens)
        decode, tokens = self._tokenizer.decode, self.tokens
        return bisect_left(range(len(tokens)), True, key=lambda n: decode(tokens[:n]).startswith(self.text))

    def _prefix(self, answer: Sequence[int]) -> list[int]:
        prefix = list[int]()
        for token in answer:
            if token == self._mask or token in self._ends:
                break
            prefix.append(token)
        return prefix


def _partial_match(text: str, stop: str) -> int:
    """How many characters at the end of the text the stop string begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
