"""Requests: the bodies of OpenAI's batch output, from what an engine replied."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lastword.api import Finish
from lastword.batch.asked import Asked
from lastword.engines.base import GenerationReply, ReplyDetails
from lastword.serve import protocol as replies
from lastword.serve.conversion import FINGERPRINT, combined_details, tokens_per_forward
from lastword.serve.protocol import InvalidRequestError, http_failure
from lastword.serve.request import DecodingFailedError, ServerError, ServerRequest

ENDED = Finish.ENDED.name.lower()
Body = tuple[int, dict[str, Any]]  # a status and what is sent with it


class Failed(str):
    """Why an answer never came; `too_long`: because of its prompt."""

    too_long = False

    def __new__(cls, reason: str, *, too_long: bool = False) -> Failed:
        made = super().__new__(cls, reason)
        made.too_long = too_long
        return made


def failed_body(wrong: Failed | ServerError) -> Body:
    """The status and the body of a request that failed. Nobody else reads it, so the reason is told."""
    if isinstance(wrong, ServerError):
        told = http_failure(wrong)
        return told.status, told.reply.model_dump()
    kind: type[ServerError] = InvalidRequestError if wrong.too_long else DecodingFailedError
    code = "context_length_exceeded" if wrong.too_long else kind.code
    body = replies.ErrorBody(message=str(wrong), type=kind.kind, code=code)
    return kind.status, replies.ErrorResponse(error=body).model_dump()


def reply_body(line: Asked, answers: Sequence[GenerationReply[Any]], where: str, name: str) -> Body:
    """What the server would have replied, but for quantiles, which engines do not tell."""
    each = [_cut(job, reply) for job, reply in zip(line.jobs, answers)]
    ledgers = [_ledger(job, reply, ended) for job, reply, (_, ended) in zip(line.jobs, answers, each)]
    written = sum(reply.details["length"] or 0 for reply in answers)
    said = line.said or [None] * len(line.jobs)
    # Jobs that share a prompt hold the same object, and it counts once.
    prompts = [(id(job.prompt), id(own)) for job, own in zip(line.jobs, said)]
    read = sum(
        reply.details["prompt_tokens"] for at, reply in enumerate(answers) if prompts[at] not in prompts[:at]
    )
    common: dict[str, Any] = {
        "id": f"{'chatcmpl' if line.chat else 'cmpl'}-{where}",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": FINGERPRINT,
        "usage": replies.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written),
        "lastword": combined_details(ledgers, written),
    }
    choices: list[dict[str, Any]] = [
        {
            "index": index,
            "finish_reason": "stop" if ended in ("model", "stop") else "length",
            "lastword": ledger,
        }
        for index, ((_, ended), ledger) in enumerate(zip(each, ledgers))
    ]
    texts = [text for text, _ in each]
    if line.chat:
        return 200, replies.ChatResponse(
            **common,
            choices=[
                replies.ChatChoice(**choice, message=replies.AssistantMessage(content=text))
                for choice, text in zip(choices, texts)
            ],
        ).model_dump()
    return 200, replies.CompletionResponse(
        **common,
        choices=[replies.CompletionChoice(**choice, text=text) for choice, text in zip(choices, texts)],
    ).model_dump()


def spent(facts: ReplyDetails) -> tuple[int | None, int | None]:
    """Passes and columns of an answer, probe included; None where nobody counted."""
    costs = [cost for cost in (facts["probe_cost"], facts["cost"]) if cost is not None]
    if not costs:
        return None, None
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)


def kept(text: str) -> str:
    """A text as it can be written: half characters of a tokenizer of its own are replaced."""
    return text.encode(errors="replace").decode()


def _cut(job: ServerRequest, reply: GenerationReply[Any]) -> tuple[str, replies.EndedBy]:
    """The text up to the first stop string, the one that is complete first, and what ended it."""
    text = kept(reply.text)
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in job.stop if stop in text]
    if found:
        end, letters = min(found)
        return text[: end + letters], "stop"
    if reply.details["finish"] == ENDED:
        return text, "model"
    return text, "cap" if job.most is not None and (reply.details["length"] or 0) >= job.most else "canvas"


def _ledger(job: ServerRequest, reply: GenerationReply[Any], ended: replies.EndedBy) -> replies.AnswerDetails:
    facts = reply.details
    expected = facts.get("expected_length")
    passes, columns = (count or 0 for count in spent(facts))
    return replies.AnswerDetails(
        predicted_length=None if expected is None else round(expected, 3),
        quantiles=None,
        horizon=facts["horizon"],
        forward_passes=passes,
        tokens_computed=columns,
        tokens_per_forward=tokens_per_forward(facts["length"] or 0, passes),
        seconds_queued=0.0,
        seconds_decoding=facts["seconds"],
        recipe=job.recipe.label(),
        seed=job.seed,
        ended_by=ended,
    )
