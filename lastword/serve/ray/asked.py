"""Asked: a request as plain data, and the application's answer to it, message by message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lastword.serve.api.client import Message, Receive, Send

log = logging.getLogger("lastword.serve")

Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """A request that was read whole."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def scope(self) -> dict[str, Any]:
        """As an ASGI server would say it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }


async def answered(app: Application, asked: Asked) -> AsyncGenerator[Message, None]:
    """Messages of the application, as it sends them; whoever stops listening has left."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
    body: list[Message] = [{"type": "http.request", "body": asked.body, "more_body": False}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await asyncio.Event().wait()  # that it leaves is told by cancelling
        raise AssertionError

    async def run() -> None:
        try:
            await app(asked.scope(), receive, messages.put)
        except Exception:  # its answer was sent; what went wrong is for the log
            log.exception("a request failed")
        await messages.put(None)

    running = asyncio.ensure_future(run())
    try:
        while (message := await messages.get()) is not None:
            yield message
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
