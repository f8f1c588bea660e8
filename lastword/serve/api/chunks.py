"""Chunks: a reply as server-sent events. Text is only ever added, unless whole snapshots were asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from lastword.models.base import MaskPredictor
from lastword.serve.api.answered import Answered, drawn, finish_reason, ledger, predicted, together
from lastword.serve.api.failure import failure
from lastword.serve.api.merged import Heard
from lastword.serve.api.schema import Asking
from lastword.serve.job import Answer, Event, Planned, Snapshot, Text
from lastword.viz.frames import Frame

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


class Chunks:
    """The events of one reply, each a chunk of the API's.

    A choice begins with its role and what is predicted of it, and ends with its finish reason and ledger.
    With `diffusing`, every chunk's text is the whole answer as it stands, and replaces the last one.
    """

    def __init__(self, answered: Answered, asking: Asking, model: MaskPredictor) -> None:
        self._answered, self._model = answered, model
        self._diffusing = bool(asking.diffusing)
        options = asking.stream_options
        self._usage = options is not None and bool(options.include_usage)
        self._object = "chat.completion.chunk" if answered.chat else "text_completion"

    async def events(self, first: tuple[int, Event], heard: Heard) -> AsyncGenerator[bytes, None]:
        """Bytes to send; what fails now is an event as well, and the last one: no `[DONE]` follows it."""
        answers: dict[int, Answer] = {}
        try:
            yield _event(self._chunk(*first))
            async for index, event in heard:
                if isinstance(event, Answer):
                    answers[index] = event
                if chunk := self._chunk(index, event):
                    yield _event(chunk)
        except Exception as error:
            if failure(error).status == 500:
                log.exception("a stream failed")
            yield _event(failure(error).reply.model_dump())
            return
        if self._usage:
            ordered = [answers[index] for index in range(len(answers))]
            ledgers = self._answered.ledgers(ordered)
            yield _event(
                {
                    **self._head,
                    "choices": [],
                    "usage": self._answered.usage(ordered).model_dump(),
                    "lastword": together(ledgers, sum(answer.tokens for answer in ordered)).model_dump(),
                }
            )
        yield DONE

    @property
    def _head(self) -> dict[str, Any]:
        return {**self._answered.head, "object": self._object}

    def _chunk(self, index: int, event: Event) -> dict[str, Any]:
        """Empty: the event is none that this stream shows."""
        if isinstance(event, Planned):
            known = predicted(event.lengths, event.horizon).model_dump()
            return self._choice(index, "", first=True, lastword=known)
        if isinstance(event, Snapshot):
            return self._snapshot(index, event.frame) if self._diffusing else {}
        if isinstance(event, Text):
            return {} if self._diffusing else self._choice(index, event.text)
        job = self._answered.jobs[index]
        return self._choice(
            index,
            event.text if self._diffusing else None,
            finish_reason=finish_reason(event),
            lastword=ledger(job, event).model_dump(),
        ) | (_meta(event.text, 1.0) if self._diffusing else {})

    def _snapshot(self, index: int, frame: Frame) -> dict[str, Any]:
        text, share = drawn(frame, self._model.tokenizer, self._model.ids.ends)  # type: ignore[arg-type]
        shown = {
            "forward_passes": frame.forward_passes,
            "texts": [None if token is None else text for token, text in zip(frame.tokens, frame.texts)],
            "filled_at": list(frame.filled_at),
            "confidence": list(frame.confidence),
            "tokens_computed": frame.tokens_computed,
            "end": frame.end,
        }
        return self._choice(index, text, lastword={"frame": shown}) | _meta(text, share)

    def _choice(self, index: int, text: str | None, *, first: bool = False, **more: Any) -> dict[str, Any]:
        """A chunk of one choice; text None adds none."""
        said: dict[str, Any] = {"text": text or ""}
        if self._answered.chat:
            said = {"delta": {} if text is None else {"content": text}}
            if first:
                said["delta"] = {"role": "assistant", **said["delta"]}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": None, **more}
        return {**self._head, "choices": [choice]} | ({"usage": None} if self._usage else {})


def _meta(text: str, share: float) -> dict[str, Any]:
    """Mercury's fields."""
    return {"diffusion_meta": {"diffusion_content": text, "diffusion_progress": round(share, 4)}}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n\n"
