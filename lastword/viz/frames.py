"""Frames: snapshots of an answer after each forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lastword.canvas.tokens import TokenIds
from lastword.decoding.loop import Step
from lastword.models.base import TextTokenizer, decode_text

MAX_INSERTED = 64  # inserted masks that are searched for, unless their number is the growth of the canvas
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # incomplete UTF-8 sequences decode to this


@dataclass(frozen=True)
class Frame:
    """The answer of one row after a forward pass; each tuple has an entry per slot."""

    forward_passes: int  # so far; 0: before the first one
    tokens: tuple[int | None, ...]  # None: a mask
    texts: tuple[str, ...]  # of each token by itself; empty for a mask and for an end token
    filled_at: tuple[int | None, ...]  # the forward pass that filled the slot; 0: it was given
    confidence: tuple[float | None, ...]  # of the token when it was filled; None: unknown
    text: str  # the complete part of the answer: up to the first mask or end token
    tokens_computed: int  # so far, without the probe
    end: int | None = None  # the slot of the first end token; None: there is none yet


def align_frame(
    old: Sequence[int], new: Sequence[int], mask: int, written: Sequence[bool] | None = None
) -> list[int | None]:
    """Return for each slot of the new answer its slot in the old answer, or None for a new slot.

    After a pass has written its tokens, a length policy may cut the canvas, extend it, or insert masks before
    one slot (Daedal). `written` marks the old slots that the pass filled. If none of these changes explains
    the new answer, for example because a hook rewrote it, slots are assumed to be unchanged.
    """

    def fits(slot: int, token: int) -> bool:
        """Return whether an old slot may have this token now."""
        if old[slot] != mask:
            return token == old[slot]
        return written is None or slot >= len(written) or written[slot] == (token != mask)

    shared, growth = min(len(old), len(new)), max(0, len(new) - len(old))
    unchanged = next((slot for slot in range(shared) if not fits(slot, new[slot])), shared)
    for count in dict.fromkeys((growth, *range(min(MAX_INSERTED, len(new)) + 1))):  # of inserted masks
        last = min(len(old), len(new) - count)
        moved = next((slot + 1 for slot in reversed(range(last)) if not fits(slot, new[slot + count])), 0)
        for place in range(min(unchanged, last), moved - 1, -1):
            if all(token == mask for token in new[place : place + count]):
                slots = [*range(place), *([None] * count), *range(place, len(new) - count)]
                return [None if slot is None or slot >= len(old) else slot for slot in slots]
    return [slot if slot < len(old) else None for slot in range(len(new))]


FilledSlot = tuple[int, int | None, float | None]  # token, the forward pass that filled it, confidence


class RowTrace:
    """A builder of the frames of one row, whose canvas may be cut, grow or get masks inserted.

    >>> import lastword
    >>> toy = lastword.load("toy")
    >>> trace = RowTrace(toy.tokenizer, toy.ids)
    >>> _ = trace.begin([toy.ids.mask] * 3)
    >>> frame = trace.after([0, toy.ids.mask, 2], [0.9, None, 0.7], tokens_computed=6)
    >>> frame.texts, frame.filled_at, frame.text
    (('a', '', 'c'), (1, None, 1), 'a')
    """

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._slots: list[FilledSlot] | None = None
        self._token_texts: dict[int, str] = {}
        self.passes = 0

    def begin(self, answer: Sequence[int]) -> Frame:
        """Return the frame before the first forward pass; its tokens count as given."""
        return self.after(answer, (), 0, forward_passes=0)

    def after(
        self,
        answer: Sequence[int],
        confidence: Sequence[float | None],
        tokens_computed: int,
        *,
        forward_passes: int | None = None,
    ) -> Frame:
        """Return the frame after one more forward pass, or after `forward_passes` in total.

        `confidence` has an entry per slot of the canvas that the pass read, None for a slot that it did not
        write. If `confidence` is empty, the written slots are unknown.
        """
        self.passes = self.passes + 1 if forward_passes is None else forward_passes
        answer, mask = list(answer), self._ids.mask
        old = [(mask, None, None)] * (len(confidence) or len(answer)) if self._slots is None else self._slots
        written = [value is not None for value in confidence] if confidence else None
        self._slots = []
        for token, slot in zip(answer, align_frame([token for token, *_ in old], answer, mask, written)):
            if token == mask:
                self._slots.append((mask, None, None))
            elif slot is not None and old[slot][0] == token:
                self._slots.append(old[slot])
            else:
                value = confidence[slot] if slot is not None and slot < len(confidence) else None
                self._slots.append((token, self.passes, value))
        end = next((slot for slot, token in enumerate(answer) if token in self._ids.ends), None)
        return Frame(
            forward_passes=self.passes,
            tokens=tuple(None if token == mask else token for token in answer),
            texts=tuple(self._texts(answer)),
            filled_at=tuple(filled_at for _, filled_at, _ in self._slots),
            confidence=tuple(value for *_, value in self._slots),
            text=decode_text(self._tokenizer, [*takewhile(lambda token: token != mask, answer[:end])]),
            tokens_computed=tokens_computed,
            end=end,
        )

    def logprobs(self, count: int) -> list[tuple[str, float | None]]:
        """Return the text and the log-probability of the first `count` tokens; None if it is unknown."""
        slots = (self._slots or [])[:count]
        # OpenAI's number for a probability of 0 is -9999.
        values = [value and min(0.0, math.log(value)) if value != 0 else -9999.0 for *_, value in slots]
        return [*zip(self._texts([token for token, *_ in slots]), values)]

    def _texts(self, answer: list[int]) -> list[str]:
        """Return a text per token; a character made of several tokens belongs to the first of them."""
        texts = [self._token_text(token) for token in answer]
        for first in range(len(texts)):
            # A character has at most four bytes, so at most four tokens.
            for last in range(first + 2, min(first + 4, len(texts)) + 1) if REPLACEMENT in texts[first] else ():
                text = decode_text(self._tokenizer, answer[first:last])
                if REPLACEMENT not in text:
                    texts[first:last] = [text] + [""] * (last - first - 1)
                    break
        return texts

    def _token_text(self, token: int) -> str:
        if token not in self._token_texts:
            is_empty = token == self._ids.mask or token in self._ids.ends
            self._token_texts[token] = "" if is_empty else decode_text(self._tokenizer, [token])
        return self._token_texts[token]


def confidences(step: Step, row: int) -> list[float | None]:
    """Return per slot of a row's answer the confidence of the token that a step wrote, or None if it wrote none.

    The slots are those before the length policy changed the canvas. The list is empty if the step replayed a
    CUDA graph, which keeps no predictions.
    """
    if step.details is None:
        return []
    prediction, canvas = step.prediction, step.prediction.canvas
    answer = slice(canvas.start, canvas.start + int(canvas.horizon[row]))
    written = step.chosen[row, answer] & (prediction.tokens_on_canvas[row, answer] != canvas.ids.mask)
    values = prediction.columns.scatter(prediction.confidence, 0.0)[row, answer]
    return [value if is_new else None for value, is_new in zip(values.tolist(), written.tolist())]


class BatchTrace:
    """The frame builders of all rows in a decode loop, by the index of their prompt."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._traces: dict[int, RowTrace] = {}

    def of(self, step: Step) -> Iterator[tuple[int, Frame]]:
        """Yield (prompt index, frame) per row that took part in a step; for a new row, first its starting frame."""
        for row, prompt in enumerate(step.request_ids):
            if prompt is None:
                continue
            if prompt not in self._traces:
                self._traces[prompt] = RowTrace(self._tokenizer, self._ids)
                if step.details is not None:
                    yield prompt, self._traces[prompt].begin(step.prediction.canvas.answer_ids(row))
            trace, cost = self._traces[prompt], step.cost.row(row)
            if cost.forward_passes > trace.passes:  # otherwise the row did not participate
                answer, passes = step.canvas.answer_ids(row), cost.forward_passes
                frame = trace.after(answer, confidences(step, row), cost.tokens_computed, forward_passes=passes)
                yield prompt, frame


class FrameRecorder(BatchTrace):
    """An `on_step` callback that keeps the frames of all rows."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        super().__init__(tokenizer, ids)
        self._frames: dict[int, list[Frame]] = {}

    def __call__(self, step: Step) -> None:
        for prompt, frame in self.of(step):
            self._frames.setdefault(prompt, []).append(frame)

    def of_row(self, request_id: int) -> tuple[Frame, ...]:
        """Return the frames of one row."""
        return tuple(self._frames[request_id])
