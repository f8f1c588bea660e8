"""Answered: from what the engine says to the objects of the OpenAI API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from lastword.models.base import TextTokenizer
from lastword.serve.api import replies
from lastword.serve.job import Answer, Job
from lastword.survival.distribution import LengthDistribution
from lastword.version import __version__
from lastword.viz.frames import Frame

QUANTILES = (0.5, 0.9)
MASK = "\N{LIGHT SHADE}"  # what stands for a mask in a text that is still being written
FINGERPRINT = f"lastword-{__version__}"


class Answered:
    """The reply to one request, whole or in chunks; `jobs` are its answers, in order."""

    def __init__(self, jobs: Sequence[Job], name: str, *, chat: bool) -> None:
        self.jobs, self.chat = jobs, chat
        self.head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": FINGERPRINT,
        }

    def reply(self, answers: Sequence[Answer]) -> replies.ChatReply | replies.TextReply:
        """All answers at once."""
        ledgers = self.ledgers(answers)
        common: dict[str, Any] = {
            **self.head,
            "usage": self.usage(answers),
            "lastword": together(ledgers, sum(answer.tokens for answer in answers)),
        }
        each = list(enumerate(zip(answers, ledgers)))
        if self.chat:
            return replies.ChatReply(
                **common,
                choices=[
                    replies.ChatChoice(
                        index=index,
                        message=replies.ChatMessage(content=answer.text),
                        finish_reason=finish_reason(answer),
                        lastword=ledger,
                    )
                    for index, (answer, ledger) in each
                ],
            )
        return replies.TextReply(
            **common,
            choices=[
                replies.TextChoice(
                    index=index,
                    text=answer.text,
                    finish_reason=finish_reason(answer),
                    lastword=ledger,
                )
                for index, (answer, ledger) in each
            ],
        )

    def usage(self, answers: Sequence[Answer]) -> replies.Usage:
        """Real tokens. Jobs that share a prompt are neighbours, and it counts once."""
        prompts = [job.prompt for job in self.jobs]
        read = sum(len(p) for at, p in enumerate(prompts) if not at or p is not prompts[at - 1])
        written = sum(answer.tokens for answer in answers)
        return replies.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def ledgers(self, answers: Sequence[Answer]) -> list[replies.Ledger]:
        """What each answer took."""
        return [ledger(job, answer) for job, answer in zip(self.jobs, answers)]


def finish_reason(answer: Answer) -> replies.FinishReason:
    """As the API has it: a text that was cut never says `stop`."""
    return "length" if answer.cut else "stop"


def ended_by(job: Job, answer: Answer) -> replies.EndedBy:
    """The model, a stop string, the cap of the request, or a canvas that was full."""
    if answer.stopped is not None:
        return "stop"
    if not answer.cut:
        return "model"
    return "cap" if job.most is not None and answer.tokens >= job.most else "canvas"


def predicted(lengths: LengthDistribution | None, horizon: int) -> replies.Predicted:
    """What the probe said."""
    if lengths is None:
        return replies.Predicted(predicted_length=None, quantiles=None, horizon=horizon)
    return replies.Predicted(
        predicted_length=round(lengths.mean.item(), 3),
        quantiles={str(q): int(lengths.quantile(q)) for q in QUANTILES},
        horizon=horizon,
    )


def ledger(job: Job, answer: Answer) -> replies.Ledger:
    """What an answer was predicted to be, and what it took."""
    made = answer.generation
    passes = made.probe_cost.forward_passes + made.cost.forward_passes
    return replies.Ledger(
        **predicted(made.lengths, made.horizon).model_dump(),
        forward_passes=passes,
        tokens_computed=made.probe_cost.tokens_computed + made.cost.tokens_computed,
        tokens_per_forward=per_forward(answer.tokens, passes),
        seconds_queued=round(answer.queued, 6),
        seconds_decoding=round(answer.decoding, 6),
        recipe=made.recipe.label(),
        seed=job.seed,
        ended_by=ended_by(job, answer),
    )


def together(ledgers: Sequence[replies.Ledger], tokens: int) -> replies.Ledger:
    """Several answers of so many tokens as one: sums, the longest seconds, and None where they differ."""
    first = ledgers[0]
    if len(ledgers) == 1:
        return first
    means = [own.predicted_length for own in ledgers if own.predicted_length is not None]
    passes = sum(own.forward_passes for own in ledgers)
    ends = {own.ended_by for own in ledgers}
    return replies.Ledger(
        predicted_length=round(sum(means), 3) if len(means) == len(ledgers) else None,
        quantiles=None,
        horizon=sum(own.horizon for own in ledgers),
        forward_passes=passes,
        tokens_computed=sum(own.tokens_computed for own in ledgers),
        tokens_per_forward=per_forward(tokens, passes),
        seconds_queued=max(own.seconds_queued for own in ledgers),
        seconds_decoding=max(own.seconds_decoding for own in ledgers),
        recipe="; ".join(dict.fromkeys(own.recipe for own in ledgers)),
        seed=first.seed,
        ended_by=first.ended_by if len(ends) == 1 else None,
    )


def drawn(frame: Frame, tokenizer: TextTokenizer, ends: Sequence[int]) -> tuple[str, float]:
    """The text of a canvas that is being written, a shade for each mask, and the share of slots written."""
    pieces, run = list[str](), list[int]()
    for token in frame.tokens:
        if token in ends:
            break
        if token is None:
            pieces += [tokenizer.decode(run), MASK]
            run = []
        else:
            run.append(token)
    written = sum(token is not None for token in frame.tokens)
    return "".join([*pieces, tokenizer.decode(run)]), written / max(len(frame.tokens), 1)


def per_forward(tokens: int, passes: int) -> float:
    """Tokens a pass; 0 where there was none."""
    return round(tokens / passes, 4) if passes else 0.0
