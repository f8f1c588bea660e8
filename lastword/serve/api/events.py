"""EventStream: a response that is sent as it is made, and given up when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lastword.serve.api.client import Gone, unless_gone

QUIET = 15.0  # seconds without an event: proxies hang up after 30 or more
COMMENT = b": waiting\n\n"  # clients pass over it


class EventStream(Response):
    """Server-sent events; whatever makes them is closed at the end. While none comes, comments are sent."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        self.events, self.close = events, close
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except Gone:
            pass
        finally:
            await self.events.aclose()
            await self.close()  # an event that was never asked for closes nothing

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def body(chunk: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        while True:
            coming = asyncio.ensure_future(anext(self.events, None))
            try:
                while not (await asyncio.wait({coming}, timeout=QUIET))[0]:
                    await body(COMMENT)
                chunk = coming.result()
            finally:
                if coming.cancel():  # the client left, and what is at work cannot be closed
                    await asyncio.wait({coming})
            if chunk is None:
                break
            await body(chunk)
        await body(b"", more=False)
