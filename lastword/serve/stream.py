"""Stream: what is heard of one job, from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from threading import Lock

from lastword.serve.job import Answer, Event, Job, Snapshot, Text


class Stream:
    """Events of one job in order, the answer or an error last. The engine never waits for its reader.

    What is not read yet takes no more room than the answer: texts are joined, and of snapshots the newest
    is kept.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._loop, self._ready, self._lock = loop, asyncio.Event(), Lock()
        self._events: deque[Event | BaseException] = deque()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Does nobody want the answer any more?"""
        return self._cancelled

    def cancel(self) -> None:
        """Free the slot between two passes; nothing more is heard."""
        self._cancelled = True

    def put(self, event: Event | BaseException) -> None:
        """From the engine's thread."""
        with self._lock:
            kept = self._events
            if isinstance(event, Snapshot):
                for old in [own for own in kept if isinstance(own, Snapshot)]:
                    kept.remove(old)
                self._join()
            kept.append(event)
            self._join()
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed: nobody reads any more
            self._cancelled = True

    def _join(self) -> None:
        """Make one text of the last two events, if both are."""
        if len(self._events) > 1:
            before, last = self._events[-2], self._events[-1]
            if isinstance(before, Text) and isinstance(last, Text):
                self._events.pop()
                self._events[-1] = Text(before.text + last.text)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Every event; whoever stops listening before the end has cancelled the job."""
        ended = False
        try:
            while not ended:
                await self._ready.wait()
                with self._lock:
                    self._ready.clear()
                    events = [*self._events]
                    self._events.clear()
                for event in events:
                    if isinstance(event, BaseException):
                        ended = True
                        raise event
                    ended = isinstance(event, Answer)
                    yield event
        finally:
            if not ended:
                self.cancel()

    async def answer(self) -> Answer:
        """The last event."""
        async for event in self:
            if isinstance(event, Answer):
                return event
        raise AssertionError("a stream ends with an answer or an error")
