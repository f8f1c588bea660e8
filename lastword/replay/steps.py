"""From steps of decoding to frames of its rows."""

from __future__ import annotations

from collections.abc import Iterator

from lastword.canvas.ids import TokenIds
from lastword.decoding import Step
from lastword.models.predictor import TextTokenizer
from lastword.replay.frames import Frame
from lastword.replay.trace import Trace


def confidences(step: Step, slot: int) -> list[float | None]:
    """How sure the model was of what a step wrote in one slot of the batch, by slot of its answer.

    The answer is the one that the pass saw, before a policy revised it; None where nothing was written.
    Empty where the pass was replayed as a captured graph, which leaves nothing to look at.
    """
    if step.seen is None:
        return []
    prediction = step.prediction
    canvas = prediction.canvas
    own = slice(canvas.start, canvas.start + int(canvas.horizon[slot]))
    written = step.chosen[slot, own] & (prediction.written[slot, own] != canvas.ids.mask)
    sure = prediction.columns.spread(prediction.confidence, 0.0)[slot, own]
    return [value if wrote else None for value, wrote in zip(sure.tolist(), written.tolist())]


class Traces:
    """The frames of every row of a decoding; rows may take one another's slots."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._traces: dict[int, Trace] = {}

    def of(self, step: Step) -> Iterator[tuple[int, Frame]]:
        """What a step shows: the index of a prompt, and its frame. The first pass shows two."""
        for slot, prompt in enumerate(step.prompts):
            if prompt is None:
                continue
            if prompt not in self._traces:
                self._traces[prompt] = Trace(self._tokenizer, self._ids)
                if step.seen is not None:
                    began = self._traces[prompt].begin(step.prediction.canvas.answer_of(slot))
                    yield prompt, began
            trace, cost = self._traces[prompt], step.cost.row(slot)
            if cost.passes > trace.passes:  # else it was not the row's turn
                sure = confidences(step, slot)
                answer = step.canvas.answer_of(slot)
                yield prompt, trace.after(answer, sure, cost.columns, passes=cost.passes)


class Kept:
    """Shown every step of a decoding, it keeps the frames of all of its rows."""

    def __init__(self, tokenizer: TextTokenizer | None, ids: TokenIds) -> None:
        self._traces = Traces(tokenizer, ids)
        self._frames: dict[int, list[Frame]] = {}

    def __call__(self, step: Step) -> None:
        for prompt, frame in self._traces.of(step):
            self._frames.setdefault(prompt, []).append(frame)

    @property
    def frames(self) -> list[tuple[Frame, ...]]:
        """Of every prompt, in their order."""
        return [tuple(self._frames[prompt]) for prompt in sorted(self._frames)]
