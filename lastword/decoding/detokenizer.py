"""Incremental detokenization of a partially decoded answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile

from lastword.canvas.tokens import TokenIds
from lastword.errors import NumericError
from lastword.models.base import TextTokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # incomplete UTF-8 sequences decode to this


class IncrementalDetokenizer:
    """A converter from a canvas that is still being decoded to text that can be streamed.

    Only text before the first mask, end token or stop string is emitted. The end of the text is withheld while it
    may still become part of a multi-byte character or of a stop string.
    """

    def __init__(self, tokenizer: TextTokenizer, ids: TokenIds, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._ids, self._stop_strings = tokenizer, ids, stop
        self.text = ""  # all text emitted so far
        self.token_ids: list[int] = []  # before the first mask and the first end token
        self.stop_reason: str | None = None  # the stop string that ended the text

    def update(self, answer_ids: Sequence[int], *, finished: bool = False) -> str:
        """Return the text that became final since the last call.

        Raise NumericError if a restarted row contradicts text that was emitted before.
        """
        prefix = decided_prefix(answer_ids, self._ids)
        if self.stop_reason is not None or (prefix == self.token_ids and not finished):
            return ""
        self.token_ids = prefix
        text, withheld = self._tokenizer.decode(prefix), 0
        if not finished:
            text = text.rstrip(REPLACEMENT)
        if (match := find_stop(text, self._stop_strings)) is not None:
            text, self.stop_reason = match
        elif not finished:
            withheld = max((_partial_match(text, stop) for stop in self._stop_strings), default=0)
        if not text.startswith(self.text[: len(text)]):
            raise NumericError("a restarted row decoded different text than was already streamed")
        delta = text[len(self.text) : len(text) - withheld]
        self.text += delta
        return delta

    @property
    def num_tokens(self) -> int:
        """The number of tokens in `text`, without those that a stop string removed."""
        if self.stop_reason is None:
            return len(self.token_ids)
        return count_tokens(self._tokenizer, self.token_ids, self.text)


def decided_prefix(answer_ids: Sequence[int], ids: TokenIds) -> list[int]:
    """Return the tokens of an answer before its first mask and its first end token."""
    undecided = {ids.mask, *ids.ends}
    return list(takewhile(lambda token: token not in undecided, answer_ids))


def find_stop(text: str, stop: Sequence[str]) -> tuple[str, str] | None:
    """Return the text before the stop string that is complete first, and that string; None if there is none."""
    matches = [(text.find(each) + len(each), each) for each in stop if each in text]
    if not matches:
        return None
    end, reason = min(matches, key=lambda match: (match[0], -len(match[1])))
    return text[: end - len(reason)], reason


def count_tokens(tokenizer: TextTokenizer, token_ids: Sequence[int], text: str) -> int:
    """Return the smallest number of leading tokens whose text begins with `text`."""
    counts = range(len(token_ids))
    return bisect_left(counts, True, key=lambda count: tokenizer.decode(token_ids[:count]).startswith(text))


def _partial_match(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
