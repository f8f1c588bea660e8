"""Client: has the one who asked left, and does it read what it is sent?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

Result = TypeVar("Result")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Gone(Exception):
    """The client closed the connection."""


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of the work, which is cancelled as soon as the client leaves. Its body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})  # so that what it holds is given back now


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def patient(send: Send, seconds: float) -> Send:
    """Send, and cut the connection of a client that does not take a message within so many seconds.

    The server in front of us then says that the client left. Behind no server there is no connection.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)  # uvicorn's
    if transport is None:
        return send

    async def sending(message: Message) -> None:
        cut = asyncio.get_running_loop().call_later(seconds, transport.abort)
        try:
            await send(message)
        finally:
            cut.cancel()

    return sending
