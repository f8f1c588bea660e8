"""Trace: which pass filled each slot of one row, and how sure the model was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastword.canvas.ids import TokenIds
from lastword.models.predictor import TextTokenizer, decoded
from lastword.replay.frames import Frame
from lastword.replay.moved import moved

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a part of a character decodes to

Confidence = Mapping[int, float | None] | Sequence[float | None]


class Trace:
    """One row's answer from pass to pass, also where its canvas is cut, grows or gets masks in its middle.

    >>> import lastword
    >>> toy = lastword.load("toy")
    >>> trace = Trace(toy.tokenizer, toy.ids)
    >>> _ = trace.begin([toy.ids.mask] * 3)
    >>> frame = trace.after([0, toy.ids.mask, 2], [0.9, None, 0.7], columns=6)
    >>> frame.texts, frame.fixed, frame.text
    (('a', '', 'c'), (1, None, 1), 'a')
    """

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._answer: list[int] | None = None
        self._fixed: list[int | None] = []
        self._confidence: list[float | None] = []
        self._pieces: dict[int, str] = {}  # texts of tokens that were met
        self.passes = 0

    def begin(self, answer: Sequence[int]) -> Frame:
        """Before the first pass: what is no mask was given."""
        return self._frame(answer, None, 0)

    def after(
        self,
        answer: Sequence[int],
        confidence: Confidence | None,
        columns: int,
        *,
        passes: int | None = None,
    ) -> Frame:
        """After a pass, or after several that nobody looked at (`passes`: so many in all).

        `confidence` has the slots as the pass saw them, with None where it wrote nothing; no entry at all,
        or None, where nobody knows.
        """
        self.passes = self.passes + 1 if passes is None else passes
        return self._frame(answer, confidence, columns)

    def _frame(self, answer: Sequence[int], confidence: Confidence | None, columns: int) -> Frame:
        answer, mask = list(answer), self._ids.mask
        sure = _by_slot(confidence, len(answer) if self._answer is None else len(self._answer))
        old = self._answer
        if old is None:
            old = [mask] * (len(sure) or len(answer))
            self._fixed, self._confidence = [None] * len(old), [None] * len(old)
        wrote = [value is not None for value in sure] if sure else None
        fixed, kept = list[int | None](), list[float | None]()
        for token, before in zip(answer, moved(old, answer, mask, wrote)):
            if token == mask:
                fixed.append(None)
                kept.append(None)
            elif before is not None and old[before] == token:
                fixed.append(self._fixed[before])
                kept.append(self._confidence[before])
            else:
                fixed.append(self.passes)
                known = before is not None and before < len(sure)
                kept.append(sure[before] if known and before is not None else None)
        self._answer, self._fixed, self._confidence = answer, fixed, kept
        end = next((slot for slot, token in enumerate(answer) if token in self._ids.ends), None)
        whole = answer[:end]
        complete = whole[: whole.index(mask)] if mask in whole else whole
        return Frame(
            passes=self.passes,
            tokens=tuple(None if token == mask else token for token in answer),
            texts=tuple(self._texts(answer)),
            fixed=tuple(fixed),
            confidence=tuple(kept),
            text=decoded(self._tokenizer, complete),
            columns=columns,
            end=end,
        )

    def _texts(self, answer: list[int]) -> list[str]:
        """Each token by itself; of tokens that are parts of a character the first has all of it."""
        texts = [self._piece(token) for token in answer]
        first = 0
        while first < len(texts):
            last = first
            while last < len(texts) and BROKEN in texts[last]:
                last += 1
            if last > first + 1:
                whole = decoded(self._tokenizer, answer[first:last])
                if BROKEN not in whole:
                    texts[first:last] = [whole] + [""] * (last - first - 1)
            first = last + 1
        return texts

    def _piece(self, token: int) -> str:
        if token == self._ids.mask or token in self._ids.ends:
            return ""
        if token not in self._pieces:
            self._pieces[token] = decoded(self._tokenizer, [token])
        return self._pieces[token]


def _by_slot(confidence: Confidence | None, slots: int) -> list[float | None]:
    if confidence is None:
        return []
    if isinstance(confidence, Mapping):
        return [confidence.get(slot) for slot in range(slots)]
    return list(confidence)
