"""Answered: from replies to the line that is written, ours or OpenAI's; and from such a line to its place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from lastword.batch.asked import Asked, Refused
from lastword.batch.line import Form, Name
from lastword.batch.requests import Failed, failed_body, kept, reply_body, spent
from lastword.engines.base import TOO_LONG, GenerationReply
from lastword.io.schema import STRICT, Count, LongText, Seed, Share, SlotCount, Text, validate

Key = tuple[int, int]  # a line's index, and which of its answers
PLACE = r"^batch_req_([0-9a-f]{12})_([0-9]{1,12})$"  # of a run, and an index in it


class Line(BaseModel):
    """A plain line: the answer to a prompt and what it took, or why there is none."""

    model_config = STRICT

    index: Count
    id: Name | None = None
    text: LongText | None
    failed: Annotated[str, Field(max_length=10_000)] | None
    finish: Literal["ended", "truncated", "masks_left"] | None = None
    prompt_tokens: Count | None = None
    tokens: SlotCount | None = None  # of the text
    horizon: SlotCount | None = None  # slots planned
    expected_length: float | None = None  # what the probe said
    tail: Share | None = None
    forward_passes: Count | None = None  # probe included
    tokens_computed: Count | None = None
    seconds: float | None = None
    seed: Seed | None = None
    shortened: bool = False  # asked on a canvas cut to what the prompt left
    run: Text


@dataclass(frozen=True)
class Written:
    """What a line of answers says, as far as a run that goes on needs it."""

    run: str
    index: int
    failed: bool


@dataclass(frozen=True)
class Answering:
    """Makes the lines of one run."""

    run: str
    name: str
    form: Form

    @property
    def beginning(self) -> bytes:
        """Of every line."""
        return b'{"index":' if self.form == "lines" else f'{{"id":"batch_req_{self.run}_'.encode()

    def refused(self, line: Refused) -> bytes:
        """Of a line that was not asked."""
        if self.form == "lines":
            return _dumped(Line(index=line.index, id=line.name, text=None, failed=line.reason, run=self.run))
        if line.error is None:
            told = {"code": "invalid_line", "message": line.reason}
            return self._envelope(line.index, line.name, None, told)
        return self._envelope(line.index, line.name, failed_body(line.error), None)

    def answered(self, line: Asked, replies: Sequence[GenerationReply[Key]]) -> tuple[bytes, bool, int]:
        """The line of all answers of a line; did it fail, and how many tokens were written?"""
        wrong = next((reason for reply in replies if (reason := reason_of(reply))), None)
        tokens = 0 if wrong else sum(reply.details["length"] or 0 for reply in replies)
        if self.form == "openai":
            body = failed_body(wrong) if wrong else reply_body(line, replies, self._id(line.index), self.name)
            return self._envelope(line.index, line.name, body, None), wrong is not None, tokens
        (reply,), (job,) = replies, line.jobs
        facts = reply.details
        common: dict[str, Any] = {
            "index": line.index, "id": line.name, "seed": job.seed, "run": self.run,
            "prompt_tokens": reply.details.get("prompt_tokens", len(job.prompt)),
        }  # fmt: skip
        if wrong is not None:
            return _dumped(Line(**common, text=None, failed=str(wrong))), True, 0
        passes, columns = spent(facts)
        told = ("finish", "horizon", "expected_length", "tail", "seconds")
        common |= {name: facts.get(name) for name in told}
        made = Line(
            **common,
            text=kept(reply.text),
            failed=None,
            tokens=facts["length"],
            forward_passes=passes,
            tokens_computed=columns,
            shortened=facts.get("shortened", False),
        )
        return _dumped(made), False, tokens

    def _id(self, index: int) -> str:
        return f"{self.run}_{index}"

    def _envelope(
        self,
        index: int,
        name: str | int | None,
        body: tuple[int, Mapping[str, Any]] | None,
        error: Mapping[str, str] | None,
    ) -> bytes:
        where = self._id(index)
        response = body and {"status_code": body[0], "request_id": f"req_{where}", "body": body[1]}
        line = {"id": f"batch_req_{where}", "custom_id": name, "response": response, "error": error}
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()


def reason_of(reply: GenerationReply[Key]) -> Failed | None:
    """Why a reply is no answer."""
    if reply.error is not None:
        return Failed(reply.error)
    if reply.details.get("finish") == TOO_LONG:
        return Failed(
            f"the prompt has {reply.details['prompt_tokens']} tokens, which leaves too little of the model's "
            "positions for an answer; give a shorter prompt, or a model with more positions",
            too_long=True,
        )
    return None


def place_of(data: Any, form: Form) -> Written:
    """Which run and line a line of answers belongs to; ValueError: it is none."""
    if form == "lines":
        line = validate(Line, data)
        return Written(line.run, line.index, line.failed is not None)
    found = isinstance(data, dict) and re.match(PLACE, str(data.get("id")))
    if not found or set(data) != {"id", "custom_id", "response", "error"}:
        raise ValueError("it is no line of a batch")
    response = data["response"]
    answered = isinstance(response, dict) and response.get("status_code") == 200
    return Written(found[1], int(found[2]), not answered)


def _dumped(line: Line) -> bytes:
    return line.model_dump_json().encode()
