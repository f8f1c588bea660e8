"""Requests to the engine, and the events and errors that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lastword.api import Generation
from lastword.errors import CapacityError, LastwordError, PromptError, RecipeError, SettingError
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.viz.frames import Frame

# Errors of the request itself; some parts of a recipe raise them only while decoding.
REQUEST_ERRORS = (CapacityError, PromptError, RecipeError, SettingError)


class ErrorKind(NamedTuple):
    """The HTTP status, error type and headers for an error."""

    status: int
    type: str = "server_error"
    retry_after: int | None = None  # seconds
    retryable: bool | None = None  # sent as X-Should-Retry; None: clients decide by the status


INVALID_REQUEST = ErrorKind(400, "invalid_request_error")
ERROR_KINDS = {  # by error code; other codes are INVALID_REQUEST
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "not_found": INVALID_REQUEST._replace(status=404),
    "model_not_found": INVALID_REQUEST._replace(status=404),
    "method_not_allowed": INVALID_REQUEST._replace(status=405),
    "request_timeout": INVALID_REQUEST._replace(status=408),
    "request_too_large": INVALID_REQUEST._replace(status=413),
    "unsupported_media_type": INVALID_REQUEST._replace(status=415),
    "overloaded": ErrorKind(429, "rate_limit_error"),
    "server_error": ErrorKind(500),
    "decoding_failed": ErrorKind(500, retryable=False),
    "draining": ErrorKind(503),
    "starting": ErrorKind(503, retry_after=5),
    "replica_lost": ErrorKind(503, retry_after=1, retryable=True),
    "deadline_unreachable": ErrorKind(503, retryable=False),
    "deadline_exceeded": ErrorKind(504, "timeout_error", retryable=False),
}


class ServerError(LastwordError):
    """An error response of the server; clients distinguish errors by `code`."""

    def __init__(
        self, message: str, code: str = "server_error", param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        kind = ERROR_KINDS.get(code, INVALID_REQUEST)
        self.kind = kind if retry_after is None else kind._replace(retry_after=retry_after)
        self.code, self.param = code, param  # param: the field to change

    @classmethod
    def of(cls, error: Exception) -> ServerError:
        """Return the error to send to a client: internal errors lose their details."""
        if isinstance(error, REQUEST_ERRORS):
            return InvalidRequestError(str(error))
        if isinstance(error, ServerError):
            return error
        return ServerError("the server failed at this request; its log says why")

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the response, in OpenAI's format."""
        return {"error": {"message": str(self), "type": self.kind.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the error adds to the response."""
        headers = {"WWW-Authenticate": "Bearer"} if self.kind.status == 401 else {}
        if self.kind.retry_after is not None:
            headers["Retry-After"] = str(self.kind.retry_after)
        if self.kind.retryable is not None:
            headers["X-Should-Retry"] = str(self.kind.retryable).lower()  # read by OpenAI's clients
        return headers


class InvalidRequestError(ServerError):
    """An error of the request; `param` is the field to change, if it is known."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message, code, param)


@dataclass(frozen=True)
class ServerRequest:
    """A validated request for one answer. An HTTP request for several answers becomes several of these."""

    prompt_ids: tuple[int, ...]
    recipe: Recipe  # resolved for the prompt
    seed: int = 0
    max_new_tokens: int | None = None  # a cap; it does not size the canvas
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    timeout: float | None = None  # seconds from submission to the last token; None: no deadline
    stream_frames: bool = False  # stream the canvas after each pass instead of text
    logprobs: bool = False  # record the log-probability of every token


@dataclass(frozen=True, eq=False)
class RequestFinished:
    """The last event of an answer, with its text, cost and times."""

    generation: Generation
    seconds_queued: float
    seconds_decoding: float
    logprobs: list[tuple[str, float | None]] | None = None  # of each token: its text and log-probability


# The events of an answer in order: its plan, then pieces of text or a frame per pass, then RequestFinished.
RequestEvent = Plan | str | Frame | RequestFinished


class EventStream:
    """A queue of the events of one HTTP request, from the engine's thread to the event loop.

    Each event has the index of its answer. The engine never waits for a reader: unread texts are joined and only the
    latest unread frame is kept, so a slow reader costs no more memory than the answer.
    """

    def __init__(self, num_answers: int) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        self._unread: dict[int, list[RequestEvent]] = {}
        self._error: BaseException | None = None
        self._answers: list[RequestFinished | None] = [None] * num_answers
        self.cancelled = False  # the engine frees the rows of a cancelled stream before its next pass

    def put(self, index: int, event: RequestEvent | BaseException) -> None:
        """Add an event of an answer; called by the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._put, index, event)
        except RuntimeError:  # the event loop is closed
            self.cancelled = True

    def _put(self, index: int, event: RequestEvent | BaseException) -> None:
        self._ready.set()
        if isinstance(event, BaseException):
            self._error = event
            return
        unread = self._unread.setdefault(index, [])
        last = unread[-1] if unread else None
        if isinstance(event, str) and isinstance(last, str):
            unread[-1] = last + event
        elif isinstance(event, Frame) and isinstance(last, Frame):
            unread[-1] = event
        else:
            unread.append(event)

    async def events(self) -> AsyncGenerator[tuple[int, RequestEvent], None]:
        """Yield events until all answers are finished; raise the error of an answer that failed.

        An error, or closing this generator early, cancels the unfinished answers.
        """
        try:
            while None in self._answers:
                await self._ready.wait()
                self._ready.clear()
                unread, self._unread = self._unread, {}
                for index, events in unread.items():
                    for event in events:
                        if isinstance(event, RequestFinished):
                            self._answers[index] = event
                        yield index, event
                if self._error is not None:
                    raise self._error
        finally:
            self.cancelled = True

    async def answers(self) -> list[RequestFinished]:
        """Read the remaining events, then return all answers in order."""
        async for _ in self.events():
            pass
        return [answer for answer in self._answers if answer is not None]
