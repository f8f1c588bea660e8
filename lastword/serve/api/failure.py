"""Failure: an error as the client is told of it, with its status and in OpenAI's shape."""

from __future__ import annotations

from typing import NamedTuple

from lastword.serve.api.invalid import Invalid
from lastword.serve.api.replies import ErrorBody, ErrorReply
from lastword.serve.errors import ABOUT_THE_REQUEST, Faulty, Refusal


class Failure(NamedTuple):
    """What is sent."""

    status: int
    reply: ErrorReply
    headers: dict[str, str]


def failure(error: Exception) -> Failure:
    """What to say of an error: a refusal's own words; of what went wrong inside, only that it did."""
    if isinstance(error, Faulty):
        error = Faulty("decoding this answer failed; others were not touched")
    elif isinstance(error, ABOUT_THE_REQUEST):
        error = Invalid(str(error))
    elif not isinstance(error, Refusal):
        error = Refusal("the server failed at this request; its log says why")
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.again is not None:
        headers["X-Should-Retry"] = str(error.again).lower()  # OpenAI's clients heed it
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = ErrorBody(
        message=str(error), type=error.kind, param=getattr(error, "param", None), code=error.code
    )
    return Failure(error.status, ErrorReply(error=body), headers)
