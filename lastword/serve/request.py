"""Requests as the engine takes them, and the events and errors it answers with."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from threading import Lock

from lastword.api import Generation
from lastword.errors import (
    CapacityError,
    LastwordError,
    PromptError,
    RecipeError,
    SettingError,
)
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import LengthDistribution
from lastword.viz.frames import Frame

# What the one who asked can put right, whenever it is found: some parts say no only once they are at work.
REQUEST_ERRORS = (CapacityError, PromptError, RecipeError, SettingError)


class ServerError(LastwordError):
    """An answer that is not given, and why; `code` is what a program tells them apart by."""

    status = 500
    kind = "server_error"
    code = "server_error"
    retry_after: int | None = None  # seconds
    again: bool | None = None  # would asking again help? None: whoever asked may judge by the status


class OverloadedError(ServerError):
    """Too much work waits already."""

    status, kind, code = 429, "rate_limit_error", "overloaded"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineUnreachableError(ServerError):
    """The fewest passes that the answer can take would miss its deadline."""

    status, code, again = 503, "deadline_unreachable", False


class DrainingError(ServerError):
    """The server is stopping."""

    status, code = 503, "draining"


class StartingError(ServerError):
    """No replica is ready yet."""

    status, code, retry_after = 503, "starting", 5


class ReplicaLostError(ServerError):
    """The replica that made the answer is gone; another one gives the same."""

    status, code, retry_after, again = 503, "replica_lost", 1, True


class DeadlineExceededError(ServerError):
    """The deadline passed before the answer was complete."""

    status, kind, code = 504, "timeout_error", "deadline_exceeded"
    again = False


class DecodingFailedError(ServerError):
    """Decoding this answer failed; others were not touched."""

    code, again = "decoding_failed", False


@dataclass(frozen=True)
class ServerRequest:
    """One answer to be made. Whoever asks for several answers to a prompt hands in as many jobs."""

    prompt: tuple[int, ...]
    recipe: Recipe  # as it was asked for; the engine settles it
    seed: int = 0
    most: int | None = None  # tokens at most; it does not size the canvas
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    seconds: float | None = None  # from handing it in to the last token; None: as long as it takes
    in_chat: bool | None = None  # did the prompt go through the chat template?
    frames: bool = False  # is every pass to be shown?


@dataclass(frozen=True, eq=False)
class RequestPlanned:
    """The probe was read: the first thing heard of a job that was taken."""

    lengths: LengthDistribution | None  # None: the recipe's policy reads none
    horizon: int  # slots of the canvas
    passes: int  # that decoding it takes at most, as far as is known


@dataclass(frozen=True)
class TextDelta:
    """More of the answer, which will not change any more."""

    text: str


@dataclass(frozen=True, eq=False)
class FrameEvent:
    """The canvas after a pass; only of a job that asked for frames, and only the newest is kept."""

    frame: Frame


@dataclass(frozen=True, eq=False)
class RequestFinished:
    """The last thing heard of a job."""

    generation: Generation
    text: str  # as far as its stop strings let it go
    tokens: int  # of the text
    cut: bool  # is it shorter than what the model would have written: by its cap, or a canvas that was full?
    stopped: str | None  # the stop string that ended it
    queued: float  # seconds until it had a slot
    decoding: float  # seconds since


RequestEvent = RequestPlanned | TextDelta | FrameEvent | RequestFinished


class EventStream:
    """Events of one job in order, the answer or an error last. The engine never waits for its reader.

    What is not read yet takes no more room than the answer: texts are joined, and of snapshots the newest
    is kept.
    """

    def __init__(self, job: ServerRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._loop, self._ready, self._lock = loop, asyncio.Event(), Lock()
        self._events: deque[RequestEvent | BaseException] = deque()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Does nobody want the answer any more?"""
        return self._cancelled

    def cancel(self) -> None:
        """Free the slot between two passes; nothing more is heard."""
        self._cancelled = True

    def put(self, event: RequestEvent | BaseException) -> None:
        """From the engine's thread."""
        with self._lock:
            kept = self._events
            if isinstance(event, FrameEvent):
                for old in [own for own in kept if isinstance(own, FrameEvent)]:
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
            if isinstance(before, TextDelta) and isinstance(last, TextDelta):
                self._events.pop()
                self._events[-1] = TextDelta(before.text + last.text)

    async def __aiter__(self) -> AsyncIterator[RequestEvent]:
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
                    ended = isinstance(event, RequestFinished)
                    yield event
        finally:
            if not ended:
                self.cancel()

    async def answer(self) -> RequestFinished:
        """The last event."""
        async for event in self:
            if isinstance(event, RequestFinished):
                return event
        raise AssertionError("a stream ends with an answer or an error")
