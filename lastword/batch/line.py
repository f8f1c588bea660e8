"""Line: what a line of prompts may hold, ours or OpenAI's; checked without a model."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from lastword.errors import PromptError
from lastword.io.prompts import Id, Message, PromptText
from lastword.io.schema import IGNORE_EXTRA, STRICT, Seed, Text, parse_json_object, validate
from lastword.serve.protocol import (
    AnswerRequest,
    ChatRequest,
    CompletionRequest,
    InvalidRequestError,
    from_validation_error,
)
from lastword.validation import MAX_COUNT, MAX_SLOTS, short_repr

Form = Literal["lines", "openai"]
Number = Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
Name = Annotated[Text, Field(min_length=1)] | Number  # what a user calls a line
Cap = Annotated[int, Field(ge=1, le=MAX_COUNT)]

KINDS = ("prompt", "messages", "tokens")
# Fields that would change an answer in other files, and in ours hold for a whole run.
OF_THE_RUN = ("temperature", "top_p", "top_k", "stop", "n", "recipe", "length", "max_new_tokens")
ROUTES: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


class Line(BaseModel):
    """A prompt in one of three ways, and what is its own; other fields are the user's."""

    model_config = IGNORE_EXTRA

    prompt: PromptText | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_SLOTS)] | None = None
    tokens: Annotated[list[Id], Field(min_length=1, max_length=MAX_SLOTS)] | None = None
    id: Name | None = None
    custom_id: Name | None = None
    seed: Seed | None = None
    max_tokens: Cap | None = None


class Named(BaseModel):
    """A name alone."""

    model_config = STRICT

    name: Name


class Envelope(BaseModel):
    """A line of OpenAI's batch input; the body is a request to the url."""

    model_config = STRICT

    custom_id: Annotated[Text, Field(min_length=1)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any] | str  # a text of JSON where a table has no objects


def form_of(data: object) -> Form:
    """Whose line it is, by its fields."""
    return "openai" if isinstance(data, dict) and "body" in data else "lines"


def name_of(data: object) -> str | int | None:
    """What a user calls a line, as far as it can be read."""
    fields = data if isinstance(data, dict) else {}
    for named in (fields.get("id"), fields.get("custom_id")):
        with suppress(ValueError):
            if named is not None:
                return validate(Named, {"name": named}).name
    return None


def line_of(data: object) -> Line:
    """A line of ours; PromptError says what is wrong with it."""
    if not isinstance(data, dict):
        raise PromptError(f'it is no object with a "prompt": {short_repr(data)}')
    given = [name for name in KINDS if data.get(name) is not None]
    if not given:
        known = ", ".join(map(short_repr, data)) or "none"
        raise PromptError(f"it has no field prompt, messages or tokens; it has {known:.200}")
    if len(given) > 1:
        raise PromptError(f"it has {' and '.join(given)}; give one of them")
    foreign = [name for name in OF_THE_RUN if data.get(name) is not None]
    if foreign:
        raise PromptError(
            f"{foreign[0]} is not set line by line: give it on the command line for all, or use OpenAI's "
            "batch format; a column of yours needs another name"
        )
    try:
        return validate(Line, data)
    except ValueError as wrong:
        raise PromptError(str(wrong)) from wrong


def request_of(data: object) -> ChatRequest | CompletionRequest:
    """The request of a line of OpenAI's; PromptError if it is none, Invalid says what is wrong with it."""
    try:
        envelope = validate(Envelope, data)
        body = envelope.body if isinstance(envelope.body, dict) else parse_json_object(envelope.body)
    except ValueError as wrong:
        raise PromptError(f"it is no line of OpenAI's batch input ({wrong})") from wrong
    kind = ROUTES[envelope.url]
    try:
        request = kind.model_validate(body)
    except ValidationError as wrong:
        raise from_validation_error(kind, wrong) from wrong
    _check_in_a_batch(request)
    return request


def _check_in_a_batch(request: AnswerRequest) -> None:
    """Refuse what nobody is there for: a stream, a deadline."""
    for name in ("stream", "timeout"):
        if getattr(request, name):
            raise InvalidRequestError(
                f"{name} is not supported in a batch: answers are written whole, when they are there; leave "
                "it out",
                name,
                "unsupported_field",
            )
