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
    may still become part of a multi-byte character or of a stop string. If there are several stop strings, the one
    that is complete first ends the text.
    """

    def __init__(self, tokenizer: TextTokenizer, ids: TokenIds, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._undecided, self._stop_strings = tokenizer, {ids.mask, *ids.ends}, stop
        self.text = ""  # all text emitted so far
        self.token_ids: list[int] = []  # before the first mask and the first end token
        self.stop_reason: str | None = None  # the stop string that ended the text

    def update(self, answer_ids: Sequence[int], *, finished: bool = False) -> str:
        """Return the text that became final since the last call.

        Raise NumericError if a restarted row contradicts text that was emitted before.
        """
        prefix = list(takewhile(lambda token: token not in self._undecided, answer_ids))
        if self.stop_reason is not None or (prefix == self.token_ids and not finished):
            return ""
        self.token_ids = prefix
        text, withheld = self._tokenizer.decode(prefix), 0
        if not finished:
            text = text.rstrip(REPLACEMENT)
        matches = [(text.find(stop) + len(stop), stop) for stop in self._stop_strings if stop in text]
        if matches:
            end, self.stop_reason = min(matches, key=lambda match: (match[0], -len(match[1])))
            text = text[: end - len(self.stop_reason)]
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
        decode, ids = self._tokenizer.decode, self.token_ids
        return bisect_left(range(len(ids)), True, key=lambda count: decode(ids[:count]).startswith(self.text))


def _partial_match(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
