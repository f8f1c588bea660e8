"""Merged: what is heard of several jobs, as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from lastword.serve.job import Answer, Event
from lastword.serve.stream import Stream

Heard = AsyncGenerator[tuple[int, Event], None]


async def merged(streams: Sequence[Stream]) -> Heard:
    """Events with the number of their job, until all have answered or one fails, which cancels the others.

    One event waits at most: what is not taken yet stays in its stream, which keeps it small.
    """
    heard: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue(1)

    async def listen(number: int, stream: Stream) -> None:
        try:
            async for event in stream:
                await heard.put((number, event))
        except Exception as error:
            await heard.put((number, error))

    listeners = [asyncio.create_task(listen(*pair)) for pair in enumerate(streams)]
    waiting = set(range(len(streams)))
    try:
        while waiting:
            number, event = await heard.get()
            if isinstance(event, Exception):
                waiting.discard(number)
                raise event
            if isinstance(event, Answer):
                waiting.discard(number)
            yield number, event
    finally:
        for listener in listeners:
            listener.cancel()
        for number in waiting:
            streams[number].cancel()
