"""Frames: the answer as it looks after each forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lastword.canvas.tokens import TokenIds
from lastword.decoding.loop import Step
from lastword.models.base import TextTokenizer, decode_text


@dataclass(frozen=True)
class Frame:
    """One row's answer after so many passes; each tuple has an entry per slot."""

    forward_passes: int  # so far; 0: before the first
    tokens: tuple[int | None, ...]  # None: still a mask
    texts: tuple[str, ...]  # of each token by itself; empty for a mask and for an end token
    filled_at: tuple[int | None, ...]  # the pass that filled the slot; 0: it was given
    confidence: tuple[float | None, ...]  # what the model gave the token then; None: nobody said
    text: str  # the answer as far as it is complete: up to the first mask or end token
    tokens_computed: int  # computed so far, probe not included
    end: int | None = None  # the slot of the first end token, counted from 0; None: there is none yet


MOST_INSERTED = 64  # slots that are looked for where the canvas did not grow by as many


def align_frame(
    old: Sequence[int], new: Sequence[int], mask: int, wrote: Sequence[bool] | None = None
) -> list[int | None]:
    """For each slot of the new answer, the slot it was in the old one; None: it is new.

    A canvas is cut at its end, grows at its end, or gets masks in one place (Daedal), after what the pass
    chose was written. `wrote` says which old slots that were. Where no such move explains the new answer,
    as after a hook that rewrites it, slots are taken to have stayed.
    """
    grown = max(0, len(new) - len(old))
    for count in dict.fromkeys((grown, *range(min(MOST_INSERTED, len(new)) + 1))):
        place = _inserted(old, new, mask, wrote, count)
        if place is not None:
            break
    else:
        place, count = 0, 0
    slots = [*range(place), *([None] * count), *range(place, len(new) - count)]
    return [None if slot is None or slot >= len(old) else slot for slot in slots]


def _inserted(
    old: Sequence[int], new: Sequence[int], mask: int, wrote: Sequence[bool] | None, count: int
) -> int | None:
    """Before which slot `count` masks were put, if that explains the new answer."""
    # What every old slot must hold now: its token; where it was a mask, a token (True) or a mask (False).
    held = list[int | bool | None](old)
    for slot, token in enumerate(old):
        if token == mask:
            held[slot] = None if wrote is None or slot >= len(wrote) else wrote[slot]
    stayed = _leading(_same(one, token, mask) for one, token in zip(held, new))
    if not count:
        return stayed if stayed == min(len(old), len(new)) else None
    last = min(len(old), len(new) - count)
    behind = zip(reversed(held[:last]), reversed(new[count : count + last]))
    shifted = last - _leading(_same(one, token, mask) for one, token in behind)
    for place in range(min(stayed, last), shifted - 1, -1):
        if all(token == mask for token in new[place : place + count]):
            return place
    return None


def _same(held: int | bool | None, token: int, mask: int) -> bool:
    if isinstance(held, bool):
        return held == (token != mask)
    return held is None or held == token


def _leading(answers: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    found = 0
    for answer in answers:
        if not answer:
            break
        found += 1
    return found


BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a part of a character decodes to

Confidence = Mapping[int, float | None] | Sequence[float | None]


class RowTrace:
    """One row's answer from pass to pass, also where its canvas is cut, grows or gets masks in its middle.

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
        tokens_computed: int,
        *,
        forward_passes: int | None = None,
    ) -> Frame:
        """After a pass, or after several that nobody looked at (`passes`: so many in all).

        `confidence` has the slots as the pass saw them, with None where it wrote nothing; no entry at all,
        or None, where nobody knows.
        """
        self.passes = self.passes + 1 if forward_passes is None else forward_passes
        return self._frame(answer, confidence, tokens_computed)

    def _frame(self, answer: Sequence[int], confidence: Confidence | None, columns: int) -> Frame:
        answer, mask = list(answer), self._ids.mask
        sure = _by_slot(confidence, len(answer) if self._answer is None else len(self._answer))
        old = self._answer
        if old is None:
            old = [mask] * (len(sure) or len(answer))
            self._fixed, self._confidence = [None] * len(old), [None] * len(old)
        wrote = [value is not None for value in sure] if sure else None
        fixed, kept = list[int | None](), list[float | None]()
        for token, before in zip(answer, align_frame(old, answer, mask, wrote)):
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
            forward_passes=self.passes,
            tokens=tuple(None if token == mask else token for token in answer),
            texts=tuple(self._texts(answer)),
            filled_at=tuple(fixed),
            confidence=tuple(kept),
            text=decode_text(self._tokenizer, complete),
            tokens_computed=columns,
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
                whole = decode_text(self._tokenizer, answer[first:last])
                if BROKEN not in whole:
                    texts[first:last] = [whole] + [""] * (last - first - 1)
            first = last + 1
        return texts

    def _piece(self, token: int) -> str:
        if token == self._ids.mask or token in self._ids.ends:
            return ""
        if token not in self._pieces:
            self._pieces[token] = decode_text(self._tokenizer, [token])
        return self._pieces[token]


def _by_slot(confidence: Confidence | None, slots: int) -> list[float | None]:
    if confidence is None:
        return []
    if isinstance(confidence, Mapping):
        return [confidence.get(slot) for slot in range(slots)]
    return list(confidence)


def confidences(step: Step, slot: int) -> list[float | None]:
    """How sure the model was of what a step wrote in one slot of the batch, by slot of its answer.

    The answer is the one that the pass saw, before a policy revised it; None where nothing was written.
    Empty where the pass was replayed as a captured graph, which leaves nothing to look at.
    """
    if step.details is None:
        return []
    prediction = step.prediction
    canvas = prediction.canvas
    own = slice(canvas.start, canvas.start + int(canvas.horizon[slot]))
    written = step.chosen[slot, own] & (prediction.tokens_on_canvas[slot, own] != canvas.ids.mask)
    sure = prediction.columns.scatter(prediction.confidence, 0.0)[slot, own]
    return [value if wrote else None for value, wrote in zip(sure.tolist(), written.tolist())]


class BatchTrace:
    """The frames of every row of a decoding; rows may take one another's slots."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._traces: dict[int, RowTrace] = {}

    def of(self, step: Step) -> Iterator[tuple[int, Frame]]:
        """What a step shows: the index of a prompt, and its frame. The first pass shows two."""
        for slot, prompt in enumerate(step.request_ids):
            if prompt is None:
                continue
            if prompt not in self._traces:
                self._traces[prompt] = RowTrace(self._tokenizer, self._ids)
                if step.details is not None:
                    began = self._traces[prompt].begin(step.prediction.canvas.answer_ids(slot))
                    yield prompt, began
            trace, cost = self._traces[prompt], step.cost.row(slot)
            if cost.forward_passes > trace.passes:  # else it was not the row's turn
                sure = confidences(step, slot)
                answer = step.canvas.answer_ids(slot)
                yield (
                    prompt,
                    trace.after(answer, sure, cost.tokens_computed, forward_passes=cost.forward_passes),
                )


class FrameRecorder:
    """Shown every step of a decoding, it keeps the frames of all of its rows."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._traces = BatchTrace(tokenizer, ids)
        self._frames: dict[int, list[Frame]] = {}

    def __call__(self, step: Step) -> None:
        for prompt, frame in self._traces.of(step):
            self._frames.setdefault(prompt, []).append(frame)

    @property
    def frames(self) -> list[tuple[Frame, ...]]:
        """Of every prompt, in their order."""
        return [tuple(self._frames[prompt]) for prompt in sorted(self._frames)]
