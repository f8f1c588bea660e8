"""Answering: a request handed to the engine, and its reply, for as long as the client is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lastword.recipe.text import as_text
from lastword.serve.api import asked, replies
from lastword.serve.api.answered import QUANTILES, Answered
from lastword.serve.api.chunks import Chunks
from lastword.serve.api.client import Receive, unless_gone
from lastword.serve.api.merged import Heard, merged
from lastword.serve.api.schema import ChatRequest, CompletionRequest, LengthsRequest
from lastword.serve.engine import Engine
from lastword.serve.job import Answer
from lastword.serve.limits import Limits

if TYPE_CHECKING:
    from starlette.responses import Response


class Answering:
    """What routes do, once a body is read."""

    def __init__(self, engine: Engine, name: str, limits: Limits) -> None:
        self._engine, self._name, self._limits = engine, name, limits

    async def answer(self, receive: Receive, asking: ChatRequest | CompletionRequest) -> Response:
        """The whole reply, or a stream of it."""
        from starlette.responses import JSONResponse

        if asking.stream:
            return await unless_gone(receive, self._begun(asking))
        reply = await unless_gone(receive, self._whole(asking))
        return JSONResponse(reply.model_dump())

    async def _whole(self, asking: ChatRequest | CompletionRequest) -> replies.ChatReply | replies.TextReply:
        answered, heard = await self._asked(asking)
        answers: dict[int, Answer] = {}
        try:
            async for index, event in heard:
                if isinstance(event, Answer):
                    answers[index] = event
        finally:
            await heard.aclose()
        return answered.reply([answers[index] for index in range(len(answers))])

    async def _begun(self, asking: ChatRequest | CompletionRequest) -> Response:
        """A stream, once the engine has said a first word: what it refuses before that has a status."""
        from lastword.serve.api.events import EventStream

        answered, heard = await self._asked(asking)
        try:
            first = await anext(heard)
        except BaseException:
            await heard.aclose()
            raise
        chunks = Chunks(answered, asking, self._engine.model)
        return EventStream(chunks.events(first, heard), heard.aclose)

    async def _asked(self, asking: ChatRequest | CompletionRequest) -> tuple[Answered, Heard]:
        engine = self._engine
        jobs = await asyncio.to_thread(asked.jobs, asking, engine.model, self._limits)
        answered = Answered(jobs, self._name, chat=isinstance(asking, ChatRequest))
        return answered, merged(engine.submit(*jobs))

    async def lengths(self, receive: Receive, asking: LengthsRequest) -> Response:
        """How long the answer will be."""
        from starlette.responses import JSONResponse

        return JSONResponse((await unless_gone(receive, self._lengths(asking))).model_dump())

    async def _lengths(self, asking: LengthsRequest) -> replies.LengthsReply:
        probe = await asyncio.to_thread(asked.probe, asking, self._engine.model, self._limits)
        found = await self._engine.lengths(*probe)
        wanted = QUANTILES if asking.quantiles is None else asking.quantiles
        return replies.LengthsReply(
            model=self._name,
            prompt_tokens=len(probe.prompt),
            limit=found.slots,
            mean=found.mean.item(),
            quantiles={str(q): int(found.quantile(q)) for q in wanted},
            curve=[round(share, 9) for share in found.survival.tolist()],
            tail=found.tail.item(),
            reading=as_text(probe.reading) if found.explanation is None else str(found.explanation),
        )
