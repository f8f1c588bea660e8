"""Request and response bodies of the HTTP API (pydantic), and errors in OpenAI's shape."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from lastword.errors import LastwordError
from lastword.io.schema import STRICT, LongText, Seed, Text, first_error
from lastword.serve.request import REQUEST_ERRORS, DecodingFailedError, ServerError
from lastword.validation import MAX_COUNT, MAX_SLOTS, short_repr


@dataclass(frozen=True, eq=False)  # neutral 0 is not neutral False, and typing keeps one of equals
class Unsupported:
    """Annotates a field: null and these neutral values are taken and dropped, others refused with the reason.

    Clients send values unasked that change nothing: a penalty of 0, an empty list of tools.
    """

    why: str
    neutral: tuple[Any, ...] = ()

    def check(self, value: Any) -> None:
        """Is it a value that asks for nothing?"""
        if not any(_same(value, allowed) for allowed in (None, *self.neutral)):
            allowed = ", ".join(map(json.dumps, self.neutral))
            raise PydanticCustomError(
                "unsupported",
                "{why}; leave it out{instead} (given: {given})",
                {
                    "why": self.why,
                    "instead": f", or give {allowed}" if allowed else "",
                    "given": short_repr(value),
                },
            )

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, *self.neutral], "description": f"Not supported: {self.why}."}


def _same(value: object, allowed: object) -> bool:
    """Equal as JSON has it: 0 and 0.0 are, 0 and false are not."""
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    return value == allowed


def _explain(words: str) -> WrapValidator:
    """One sentence in the place of what each branch of a union has to say."""

    def check(value: object, inner: Callable[[object], object]) -> object:
        try:
            return inner(value)
        except ValidationError as wrong:
            raise PydanticCustomError("shape", "{words}", {"words": words}) from wrong

    return WrapValidator(check)


MAX_STOPS = 4
StopText = Annotated[str, Field(min_length=1, max_length=1_000)]
StopTexts = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)],
    _explain(f"give a text, or a list of at most {MAX_STOPS} texts, none of them empty"),
]
Ids = Annotated[list[int], Field(min_length=1, max_length=MAX_SLOTS)]
Prompts = Annotated[
    LongText
    | Annotated[list[LongText], Field(min_length=1)]
    | Ids
    | Annotated[list[Ids], Field(min_length=1)],
    _explain("give text, a list of texts, a list of token ids, or a list of lists of them"),
]
OnePrompt = Annotated[LongText | Ids, _explain("give text, or a list of token ids")]
PartOrRecipe = Annotated[Text | dict[str, Any], _explain("give a name, or an object with a name and fields")]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0)]
Quantile = Annotated[float, Field(gt=0, lt=1)]

NO_TOOLS = "the model writes text and calls no tools"
NO_LOGPROBS = "tokens are written out of order and are not scored one after the other"
NO_PENALTY = "tokens are written out of order, so there is no text so far to count in"
NO_BIAS = "tokens are chosen by the recipe's rule, which takes no bias"
NO_STORE = "nothing is kept of a request"
TEXT_ONLY = "the model reads and writes text"


class TextPart(BaseModel):
    """A piece of a message; pieces are joined as they are."""

    model_config = STRICT

    type: Literal["text"]
    text: LongText


TurnContent = Annotated[
    LongText | Annotated[list[TextPart], Field(min_length=1)],
    _explain("give text, or a list of parts of type text; images, sound and files are not read"),
]


class ChatTurn(BaseModel):
    """One turn of a conversation. What clients send back of an answer of ours is taken."""

    model_config = STRICT

    role: Literal["system", "developer", "user", "assistant"]
    content: TurnContent
    name: Annotated[Any, Unsupported("the chat template has no names")] = None
    refusal: Annotated[Any, Unsupported("an answer is text")] = None
    annotations: Annotated[Any, Unsupported("an answer is text", ([],))] = None
    audio: Annotated[Any, Unsupported(TEXT_ONLY)] = None
    tool_calls: Annotated[Any, Unsupported(NO_TOOLS, ([],))] = None
    function_call: Annotated[Any, Unsupported(NO_TOOLS)] = None

    @property
    def text(self) -> str:
        """The content in one piece."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


# The first wrong one is told, so the others are not looked for: a body can hold a million of them.
ChatTurns = Annotated[list[ChatTurn], Field(min_length=1, fail_fast=True)]


class StreamOptions(BaseModel):
    """What a stream says beside the text."""

    model_config = STRICT

    include_usage: bool | None = Field(None, description="A last chunk with the usage.")
    include_obfuscation: Annotated[Any, Unsupported("chunks are not padded", (False,))] = None


class AnswerRequest(BaseModel):
    """What a request for answers may hold, whatever its prompt looks like."""

    model_config = STRICT

    model: Text = Field(description="the name of the model, as /v1/models has it")
    n: int | None = Field(None, ge=1, description="Answers to each prompt.")
    stream: bool | None = Field(None, description="Text as soon as it can no longer change.")
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = Field(None, description="Tokens at most; it does not size the canvas.")
    temperature: float | None = Field(None, description="Left out, it is the recipe's.")
    top_p: float | None = Field(None, description="1 changes nothing.")
    seed: Seed | None = Field(None, description="The first answer's; the next one's is one more.")
    stop: StopTexts | None = Field(None, description="The text ends before the first of these.")
    user: Text | None = Field(None, description="Taken, and not used.")

    recipe: PartOrRecipe | None = Field(
        None, description="A recipe's name, or one as JSON. Left out, it is the server's."
    )
    length: PartOrRecipe | None = Field(None, description="A length policy: its text, or as JSON.")
    timeout: Seconds | None = Field(None, description="Seconds until the answer is of no use.")
    diffusing: bool | None = Field(None, description="Stream the whole canvas after each pass.")

    frequency_penalty: Annotated[Any, Unsupported(NO_PENALTY, (0,))] = None
    presence_penalty: Annotated[Any, Unsupported(NO_PENALTY, (0,))] = None
    logit_bias: Annotated[Any, Unsupported(NO_BIAS, ({},))] = None

    @property
    def cap(self) -> int | None:
        """Tokens at most."""
        return self.max_tokens


class ChatRequest(AnswerRequest):
    """A request to /v1/chat/completions."""

    messages: ChatTurns = Field(description="the conversation so far, a list")
    max_completion_tokens: MaxTokens | None = Field(None, description="The newer name of max_tokens.")
    safety_identifier: Text | None = Field(None, description="Taken, and not used.")
    prompt_cache_key: Text | None = Field(None, description="Taken, and not used.")

    logprobs: Annotated[Any, Unsupported(NO_LOGPROBS, (False,))] = None
    top_logprobs: Annotated[Any, Unsupported(NO_LOGPROBS, (0,))] = None
    tools: Annotated[Any, Unsupported(NO_TOOLS, ([],))] = None
    tool_choice: Annotated[Any, Unsupported(NO_TOOLS, ("none", "auto"))] = None
    parallel_tool_calls: Annotated[Any, Unsupported(NO_TOOLS, (False, True))] = None
    functions: Annotated[Any, Unsupported(NO_TOOLS, ([],))] = None
    function_call: Annotated[Any, Unsupported(NO_TOOLS, ("none", "auto"))] = None
    response_format: Annotated[
        Any, Unsupported("no grammar is enforced on an answer", ({"type": "text"},))
    ] = None
    modalities: Annotated[Any, Unsupported(TEXT_ONLY, ([], ["text"]))] = None
    audio: Annotated[Any, Unsupported(TEXT_ONLY)] = None
    prediction: Annotated[Any, Unsupported("an answer starts from masks alone")] = None
    reasoning_effort: Annotated[Any, Unsupported("the recipe says how much work is done", ("none",))] = None
    verbosity: Annotated[Any, Unsupported("length policies say how long an answer gets", ("medium",))] = None
    web_search_options: Annotated[Any, Unsupported("nothing is searched for")] = None
    store: Annotated[Any, Unsupported(NO_STORE, (False,))] = None
    metadata: Annotated[Any, Unsupported(NO_STORE, ({},))] = None
    prompt_cache_retention: Annotated[Any, Unsupported(NO_STORE)] = None
    service_tier: Annotated[
        Any, Unsupported("shorter answers go first, and there are no tiers", ("auto", "default"))
    ] = None

    @property
    def cap(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(AnswerRequest):
    """A request to /v1/completions."""

    prompt: Prompts = Field(description="text or token ids, one of them or a list")

    best_of: Annotated[Any, Unsupported("answers are not ranked: ask for n", (1,))] = None
    echo: Annotated[Any, Unsupported("the answer comes without its prompt", (False,))] = None
    logprobs: Annotated[Any, Unsupported(NO_LOGPROBS, (False,))] = None
    suffix: Annotated[Any, Unsupported("the answer ends where the model ends it", ("",))] = None


class LengthsRequest(BaseModel):
    """A request to /v1/lengths: a prompt, or messages."""

    model_config = STRICT

    model: Text | None = Field(None, description="The name of the model; left out, the one here.")
    prompt: OnePrompt | None = None
    messages: ChatTurns | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = Field(
        None, description="Masks that the probe looks at."
    )
    ends: Literal["document", "any"] | None = Field(
        None, description="document: the paper's signal; any: the turn end counts, too."
    )
    reading: PartOrRecipe | None = Field(None, description="What the signal is taken for; auto picks.")
    quantiles: Annotated[list[Quantile], Field(max_length=16)] | None = None


FinishReason = Literal["stop", "length"]
EndedBy = Literal["model", "stop", "cap", "canvas"]


class ErrorBody(BaseModel):
    """What went wrong, in words and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """Every answer with a status of 400 or more."""

    error: ErrorBody


class Usage(BaseModel):
    """Tokens that were read and written; a prompt counts once, however many answers it gets."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PredictedLength(BaseModel):
    """What was known before the first token."""

    predicted_length: float | None  # the mean; None: the recipe's length policy reads none
    quantiles: dict[str, int] | None
    horizon: int  # slots of the canvas


class AnswerDetails(PredictedLength):
    """What an answer was predicted to be, what it took, and how it ended.

    Of several answers together: sums, the longest seconds, and None where they differ.
    """

    forward_passes: int  # of the model, probe included
    tokens_computed: int  # those passes computed
    tokens_per_forward: float
    seconds_queued: float
    seconds_decoding: float
    recipe: str
    seed: int | None
    ended_by: EndedBy | None


class FramePayload(BaseModel):
    """The canvas after a pass, an entry per slot: null where a mask stands."""

    forward_passes: int
    texts: list[str | None]
    filled_at: list[int | None]  # by which pass
    confidence: list[float | None]
    tokens_computed: int
    end: int | None  # the slot of the first end token, counted from 0


class AssistantMessage(BaseModel):
    """The answer's turn."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer to a conversation."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: FinishReason
    lastword: AnswerDetails


class AnswerResponse(BaseModel):
    """What all replies with answers begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatResponse(AnswerResponse):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    lastword: AnswerDetails


class CompletionChoice(BaseModel):
    """One answer to a prompt."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason
    lastword: AnswerDetails


class CompletionResponse(AnswerResponse):
    """The answer of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage
    lastword: AnswerDetails


class ServedModel(BaseModel):
    """What can be asked of a model, and what its answers depend on."""

    chat: bool  # has it a chat template?
    slots: int  # of a canvas, at most
    positions: int  # of prompt and answer together
    weights: str  # a fingerprint: other weights under the same name are another model
    dtype: str
    hardware: str
    recipe: str  # of a request that names none


class ModelResponse(BaseModel):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lastword"
    lastword: ServedModel


class ModelsResponse(BaseModel):
    """All of them: one."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]


class LengthsResponse(BaseModel):
    """How long the answer will be; a length counts the end token."""

    object: Literal["lengths"] = "lengths"
    model: str
    prompt_tokens: int
    limit: int  # slots the probe looked at
    mean: float  # what lies beyond the last slot counts as `limit`
    quantiles: dict[str, int]
    curve: list[float]  # how likely the answer is longer than 0, 1, ... limit
    tail: float  # how likely it is longer than the probe
    reading: str


class HealthResponse(BaseModel):
    """Is it alive, does it take requests, is it stopping?"""

    live: bool = True
    ready: bool
    draining: bool
    state: str
    counts: dict[str, int]


class InvalidRequestError(ServerError):
    """A request that cannot be answered as it stands; `param` is the field to change."""

    status, kind, code = 400, "invalid_request_error", "invalid_request"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code or type(self).code


class AuthenticationError(InvalidRequestError):
    """No key was given, or none of ours."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class NotFoundError(InvalidRequestError):
    """A path or a model that this server does not have."""

    status, code = 404, "not_found"


class BodyTimeoutError(InvalidRequestError):
    """A body that did not arrive in time."""

    status, code = 408, "request_timeout"


class BodyTooLargeError(InvalidRequestError):
    """A body of more bytes than are read."""

    status, code = 413, "request_too_large"


class MediaTypeError(InvalidRequestError):
    """A body that says it is something else."""

    status, code = 415, "unsupported_media_type"


@contextmanager
def errors_of_field(param: str) -> Iterator[None]:
    """Whatever is refused inside is said of this field."""
    try:
        yield
    except ServerError:
        raise
    except LastwordError as wrong:
        raise InvalidRequestError(str(wrong), param) from wrong


def from_validation_error(kind: type[BaseModel], wrong: ValidationError) -> InvalidRequestError:
    """The first thing that is wrong with a request, in a sentence that names the field."""
    field, first = first_error(wrong)
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(
            f"there is no field {field}{_suggestion(field, kind.model_fields)}", field, "unknown_field"
        )
    if first["type"] == "missing":
        return InvalidRequestError(f"{field} is missing: {_description(kind, field)}", field, "missing_field")
    if first["type"] == "unsupported":
        return InvalidRequestError(f"{field} is not supported: {first['msg']}", field, "unsupported_field")
    if not field:
        return InvalidRequestError(str(first["msg"]))
    return InvalidRequestError(f"{field}: {first['msg']} (given: {short_repr(first['input'])})", field)


def _suggestion(field: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(field, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def _description(kind: type[BaseModel], field: str) -> str:
    known = kind.model_fields.get(field)
    return (known and known.description) or "give it"


class HttpFailure(NamedTuple):
    """What is sent."""

    status: int
    reply: ErrorResponse
    headers: dict[str, str]


def http_failure(error: Exception) -> HttpFailure:
    """What to say of an error: a refusal's own words; of what went wrong inside, only that it did."""
    if isinstance(error, DecodingFailedError):
        error = DecodingFailedError("decoding this answer failed; others were not touched")
    elif isinstance(error, REQUEST_ERRORS):
        error = InvalidRequestError(str(error))
    elif not isinstance(error, ServerError):
        error = ServerError("the server failed at this request; its log says why")
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
    return HttpFailure(error.status, ErrorResponse(error=body), headers)
