"""Relay: one request, handed to a replica and, where that one is lost, to another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from lastword.serve.api.client import Message, Send
from lastword.serve.api.failure import failure
from lastword.serve.errors import Draining, Lost, Refusal
from lastword.serve.ray.asked import Asked

log = logging.getLogger("lastword.serve")

TRIES = 3  # replicas that are asked, one after the other, before the client is told
EVENTS = b"text/event-stream"

Ask = Callable[[Asked], AsyncIterator[Message]]


class Relay:
    """Sends on what a replica answers.

    An answer depends on question, recipe and seed alone, so that another replica may be asked as long as the
    client was sent nothing. Once it was, it is told that the rest does not come, and nothing is said twice.
    """

    def __init__(self, ask: Ask, is_lost: Callable[[BaseException], bool]) -> None:
        self._ask, self._is_lost = ask, is_lost
        self.over = asyncio.Event()  # nobody is waited for any longer

    async def __call__(self, asked: Asked, send: Send) -> None:
        """Answer a request; what is raised was not sent."""
        for left in reversed(range(TRIES)):
            sent = _Sent(send)
            try:
                await self._unless_over(self._once(asked, sent))
                return
            except Refusal as refusal:
                if sent.begun:
                    await sent.fail(refusal)
                    return
                raise
            except Exception as error:
                if not self._is_lost(error):
                    if not sent.begun:
                        raise
                    log.exception("a replica failed")
                    await sent.fail(error)
                    return
                log.warning("a replica was lost: %s", type(error).__name__)
                said = Lost("the replica that made this answer is gone; ask again")
                if sent.begun:
                    await sent.fail(said)
                    return
                if not left:
                    raise said from error

    async def _once(self, asked: Asked, send: _Sent) -> None:
        async for message in self._ask(asked):
            await send(message)

    async def _unless_over(self, work: Awaitable[None]) -> None:
        working = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Draining("the server stopped before the answer was complete; ask again later")
            await working
        finally:
            over.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working})


class _Sent:
    """What the client was sent: nothing, until there is something of the body."""

    def __init__(self, send: Send) -> None:
        self._send, self._head = send, dict[str, Any]()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = dict(message)
            return
        if not self.begun:
            self.begun = True
            await self._send(self._head)
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """An event that says so, the last one of a stream; no `[DONE]` follows it.

        Only streams are sent in parts.
        """
        kinds = {name.lower(): value for name, value in self._head["headers"]}
        said = b""
        if kinds.get(b"content-type", b"").startswith(EVENTS):
            said = b"data: " + failure(error).reply.model_dump_json().encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": said, "more_body": False})
