"""Request and response bodies of the HTTP API (pydantic), and errors in OpenAI's format."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Predicate
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from lastword.io.schema import STRICT, LongText, PositiveSlots, Text, first_error
from lastword.prompts import is_batch
from lastword.serve.request import InvalidRequestError
from lastword.validation import MAX_COUNT, MAX_NUMBER, MAX_SLOTS, MIN_TEMPERATURE, short_repr

NOT_SUPPORTED = "Not supported: "


def unsupported(reason: str) -> Any:
    """Return the field of an unsupported option; its annotation allows only values without effect."""
    return Field(None, description=f"{NOT_SUPPORTED}{reason}.")


def _explain(allowed: str) -> WrapValidator:
    """Return a validator that replaces the errors, such as one per branch of a union, by `allowed`."""

    def check(value: object, validate: Callable[[object], object]) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            raise PydanticCustomError("shape", "{allowed}", {"allowed": allowed}) from error

    return WrapValidator(check)


MAX_STOPS = 4
StopText = Annotated[str, Field(min_length=1, max_length=1_000)]
StopTexts = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)],
    AfterValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    _explain(f"give a text, or a list of at most {MAX_STOPS} texts, none of them empty"),
]


def _whole(value: Any) -> Any:
    """Return a float without fraction as an int, also in a list: 5.0 is an integer in JSON Schema."""
    if isinstance(value, list) and float in set(map(type, value)):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
PromptText = Annotated[LongText, Field(min_length=1)]
# fail_fast: a body can hold a million items, and only the first error is reported.
Items = Field(min_length=1, fail_fast=True)
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_SLOTS, fail_fast=True), Whole]
Prompts = Annotated[
    PromptText | Annotated[list[PromptText], Items] | Ids | Annotated[list[Ids], Items],
    AfterValidator(lambda prompt: prompt if is_batch(prompt) else [prompt]),
    _explain("give text, a list of texts, a list of token ids, or a list of lists of them, none of them empty"),
]
OnePrompt = Annotated[
    PromptText | Ids, AfterValidator(lambda prompt: [prompt]), _explain("give text, or a list of token ids, not empty")
]
PartOrRecipe = Annotated[Text | dict[str, Any], _explain("give a name, or an object with a name and fields")]
Limit = Annotated[PositiveSlots, Whole]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_COUNT), Whole]
Temperature = Annotated[
    Annotated[float, Field(ge=MIN_TEMPERATURE, le=MAX_NUMBER)] | Annotated[float, Field(ge=0, le=0)],
    _explain(f"give 0 or a number of at least {MIN_TEMPERATURE:g}"),
]
MAX_SEED = 9 * 10**18  # OpenAPI documents give bounds as doubles, and most numbers of 63 bits are none
WholeSeed = Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED), Whole]
TopP = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Quantile = Annotated[float, Field(gt=0, lt=1)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    _explain("give at most 16 texts of up to 512 characters, with names of up to 64"),
]

EmptyList = Annotated[list[Any], Field(max_length=0)]
EmptyObject = Annotated[dict[str, Any], Field(max_length=0)]
Zero = Annotated[float, Field(ge=0, le=0)]
Off = Annotated[bool, Predicate(operator.not_), Field(json_schema_extra={"const": False})]
LOGPROBS = "Return the log-probability of every token of the answer, in the forward pass that decoded it."
NumLogprobs = Annotated[
    Off | Annotated[int, Field(ge=0, le=1), Whole],
    AfterValidator(lambda given: None if given is False else given),
    _explain("give 0 or 1: only decoded tokens have log-probabilities"),
]

NO_TOOLS = "the model writes text and does not call tools"
NO_ALTERNATIVES = "the probabilities of other tokens are not kept"
NO_PENALTY = "tokens are decoded out of order, so there is no preceding text in which to count them"
NO_BIAS = "the unmask rule of the recipe chooses tokens and takes no bias"
NO_STORE = "requests are not stored"
TEXT_ONLY = "the model reads and writes text"


class StrictModel(BaseModel):
    """The base class of request bodies and their parts: unknown fields and type conversions are rejected."""

    model_config = STRICT


class TextPart(StrictModel):
    """A text part of a chat message; the parts of a message are joined without separators."""

    type: Literal["text"]
    text: LongText


TurnContent = Annotated[
    LongText | Annotated[list[TextPart], Items],
    AfterValidator(lambda parts: parts if isinstance(parts, str) else "".join(part.text for part in parts)),
    _explain("give text, or a list of parts of type text; images, sound and files are not supported"),
]


class ChatTurn(StrictModel):
    """A chat message; an `AssistantMessage` of this server is valid, so clients can send it back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: TurnContent
    name: None = unsupported("the chat template has no field for names")
    refusal: None = unsupported("an answer is text")
    annotations: EmptyList | None = unsupported("an answer is text")
    audio: None = unsupported(TEXT_ONLY)
    tool_calls: EmptyList | None = unsupported(NO_TOOLS)
    function_call: None = unsupported(NO_TOOLS)


ChatTurns = Annotated[list[ChatTurn], Items]


class StreamOptionsBody(StrictModel):
    """The `stream_options` of a request."""

    include_usage: bool | None = Field(None, description="End the stream with a chunk that holds the usage.")
    include_obfuscation: Off | None = unsupported("chunks are not padded")


class AnswerSettings(BaseModel):
    """The settings of an answer that requests and lines of a batch share."""

    max_tokens: MaxTokens | None = Field(None, description="Maximum number of tokens; it does not size the canvas.")
    max_new_tokens: MaxTokens | None = Field(None, description="Same as max_tokens.")
    temperature: Temperature | None = Field(None, description="Default: the recipe's.")
    top_p: TopP | None = Field(None, description="1 has no effect.")
    top_k: Limit | None = Field(None, description="No effect at temperature 0.")
    stop: StopTexts | None = Field(None, description="Strings that end the text; they are not part of it.")
    recipe: PartOrRecipe | None = Field(None, description="A recipe by its name or as JSON. Default: the server's.")
    length: PartOrRecipe | None = Field(None, description="A length policy as text or JSON.")

    @model_validator(mode="after")
    def _unite_token_limits(self) -> Self:
        names = ("max_tokens", "max_new_tokens", "max_completion_tokens")
        caps = {name: value for name in names if (value := getattr(self, name, None)) is not None}
        if len(set(caps.values())) > 1:
            given = " and ".join(f"{name} {value}" for name, value in caps.items())
            raise InvalidRequestError(f"{given} were given; give one of them", [*caps][-1])
        self.max_tokens = next(iter(caps.values()), None)
        return self


class AnswerRequest(StrictModel, AnswerSettings):
    """The fields that chat and completion requests share."""

    model: Text = Field(description="the name of the model, as listed by /v1/models")
    n: Annotated[int, Field(ge=1), Whole] | None = Field(None, description="Number of answers per prompt.")
    stream: bool | None = Field(None, description="Send text as soon as it is final.")
    stream_options: StreamOptionsBody | None = None
    seed: WholeSeed | None = Field(None, description="Seed of the first answer; each further answer adds one.")
    user: Text | None = Field(None, description="Accepted and ignored.")
    metadata: Metadata | None = Field(None, description="Up to 16 texts by name, for the server's JSON access log.")
    timeout: Seconds | None = Field(None, description="Deadline in seconds.")
    diffusing: bool | None = Field(None, description="Stream the whole canvas after each forward pass.")

    frequency_penalty: Zero | None = unsupported(NO_PENALTY)
    presence_penalty: Zero | None = unsupported(NO_PENALTY)
    logit_bias: EmptyObject | None = unsupported(NO_BIAS)

    @model_validator(mode="after")
    def _check_stream_options(self) -> AnswerRequest:
        if not self.stream and self.stream_options and self.stream_options.include_usage:
            raise InvalidRequestError("stream_options was given without stream: true", "stream_options")
        if not self.stream and self.diffusing:
            raise InvalidRequestError("diffusing needs a stream; give stream: true as well", "diffusing")
        return self


class TextFormat(StrictModel):
    """The only supported `response_format`: plain text."""

    type: Literal["text"]


class ChatRequest(AnswerRequest):
    """The body of a request to /v1/chat/completions."""

    messages: ChatTurns = Field(description="the conversation so far, a list")
    max_completion_tokens: MaxTokens | None = Field(None, description="Same as max_tokens.")
    safety_identifier: Text | None = Field(None, description="Accepted and ignored.")
    prompt_cache_key: Text | None = Field(None, description="Accepted and ignored.")

    logprobs: Annotated[bool, AfterValidator(lambda given: given or None)] | None = Field(None, description=LOGPROBS)
    top_logprobs: Annotated[int, Field(ge=0, le=0), Whole] | None = unsupported(NO_ALTERNATIVES)
    tools: EmptyList | None = unsupported(NO_TOOLS)
    tool_choice: Literal["none", "auto"] | None = unsupported(NO_TOOLS)
    parallel_tool_calls: bool | None = unsupported(NO_TOOLS)
    functions: EmptyList | None = unsupported(NO_TOOLS)
    function_call: Literal["none", "auto"] | None = unsupported(NO_TOOLS)
    response_format: TextFormat | None = unsupported("answers cannot be constrained to a grammar")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = unsupported(TEXT_ONLY)
    audio: None = unsupported(TEXT_ONLY)
    prediction: None = unsupported("an answer starts from masks only")
    reasoning_effort: Literal["none"] | None = unsupported("the recipe sets the effort")
    verbosity: Literal["medium"] | None = unsupported("the length policy sets the length")
    web_search_options: None = unsupported("the server does not search")
    store: Off | None = unsupported(NO_STORE)
    prompt_cache_retention: None = unsupported(NO_STORE)
    service_tier: Literal["auto", "default"] | None = unsupported("there is one tier; shorter answers go first")


class CompletionRequest(AnswerRequest):
    """The body of a request to /v1/completions."""

    prompt: Prompts = Field(description="text or token ids, one of them or a list")

    best_of: Annotated[int, Field(ge=1, le=1), Whole] | None = unsupported("answers are not ranked; use n")
    echo: Off | None = unsupported("the prompt is not part of the answer")
    logprobs: NumLogprobs | None = Field(None, description=LOGPROBS)
    suffix: Literal[""] | None = unsupported("nothing can follow the answer")


# In JSON Schema: one of the two fields is not null.
ONE_PROMPT: Any = [{"required": [f], "properties": {f: {"not": {"type": "null"}}}} for f in ("prompt", "messages")]


class LengthsRequest(StrictModel):
    """The body of a request to /v1/lengths, with either a prompt or messages."""

    model_config = STRICT | {"json_schema_extra": {"oneOf": ONE_PROMPT}}

    model: Text | None = Field(None, description="The name of the model; optional.")
    prompt: OnePrompt | None = None
    messages: ChatTurns | None = None
    limit: Limit | None = Field(None, description="Number of masks of the probe.")
    ends: Literal["document", "any"] | None = Field(None, description="any: end-of-turn tokens count as well.")
    interpretation: PartOrRecipe | None = Field(None, description="Of the end signal, by name or as JSON.")
    quantiles: Annotated[list[Quantile], Field(max_length=16)] | None = None

    @model_validator(mode="after")
    def _check_prompt(self) -> LengthsRequest:
        if (self.prompt is None) == (self.messages is None):
            field = "prompt" if self.prompt is None else "messages"
            raise InvalidRequestError("give either prompt or messages", field)
        return self


AnswerBody = ChatRequest | CompletionRequest
ANSWER_BODIES: dict[str, type[AnswerBody]] = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest}
BODIES: dict[str, type[AnswerBody | LengthsRequest]] = {**ANSWER_BODIES, "/v1/lengths": LengthsRequest}

FinishReason = Literal["stop", "length"]
EndedBy = Literal["model", "stop", "cap", "canvas"]


class ErrorBody(BaseModel):
    """The error object of a response: a message for people and a code for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of a response with a status of 400 or more, except to invalid HTTP and failed preflights."""

    error: ErrorBody


class Usage(BaseModel):
    """The token counts of a response; a prompt with several answers is counted once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerDetails(BaseModel):
    """The predicted length and the cost of an answer, and how it ended.

    For several answers together: sums, the longest times, the first seed, and null for values that differ.
    """

    predicted_length: float | None  # the mean; None: the length policy does not predict lengths
    quantiles: dict[str, int] | None
    horizon: int  # planned number of slots
    forward_passes: int  # including the probe
    tokens_computed: int
    tokens_per_forward: float
    seconds_queued: float
    seconds_decoding: float
    recipe: str
    seed: int | None
    ended_by: EndedBy | None

    @classmethod
    def of(cls, finish: str, tokens: int, cap: int | None, **fields: Any) -> AnswerDetails:
        """Return the details of an answer of `tokens` tokens; `finish` is that of `Generation.to_data`."""
        truncated_by = "canvas" if cap is None or tokens < cap else "cap"
        fields["ended_by"] = {"ended": "model", "stopped": "stop"}.get(finish, truncated_by)
        return cls(**fields, tokens_per_forward=tokens_per_forward(tokens, fields["forward_passes"]))


def tokens_per_forward(tokens: int, passes: int) -> float:
    """Return the rounded number of tokens per forward pass; 0 if there were none."""
    return round(tokens / passes, 4) if passes else 0.0


class AssistantMessage(BaseModel):
    """The message in a chat response."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ResponseChoice(BaseModel):
    """The fields that chat and completion choices share."""

    index: int
    logprobs: dict[str, Any] | None = None  # OpenAI's objects for chats and for completions
    finish_reason: FinishReason
    lastword: AnswerDetails


class ChatChoice(ResponseChoice):
    """An entry of `choices` in a chat response."""

    message: AssistantMessage


class CompletionChoice(ResponseChoice):
    """An entry of `choices` in a completion response."""

    text: str


class AnswerResponse(BaseModel):
    """The fields that chat and completion responses share."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    lastword: AnswerDetails


class ChatResponse(AnswerResponse):
    """The response of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class CompletionResponse(AnswerResponse):
    """The response of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ServedModel(BaseModel):
    """The limits of the served model, and the settings and hardware that affect its answers."""

    chat: bool  # whether the model has a chat template
    single_turn: bool  # whether the model was trained on one question and one answer
    default_max_new_tokens: int  # largest horizon that the server allows
    max_seq_len: int  # tokens of prompt and answer together
    weights: str  # fingerprint of the weights
    dtype: str
    hardware: str
    recipe: str  # label of the default recipe


class ModelResponse(BaseModel):
    """An entry of /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lastword"
    lastword: ServedModel


class ModelsResponse(BaseModel):
    """The response of /v1/models, which lists one model."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]


class LengthsResponse(BaseModel):
    """The response of /v1/lengths: a length distribution; lengths include the end token."""

    object: Literal["lengths"] = "lengths"
    model: str
    prompt_tokens: int
    limit: int  # number of masks of the probe
    mean: float  # lengths beyond the limit count as `limit`
    quantiles: dict[str, int]
    curve: list[float]  # survival function at 0, 1, ... limit
    tail: float  # probability that the answer is longer than `limit`
    interpretation: str


class HealthResponse(BaseModel):
    """The response of /health; `counts` are the running and waiting answers and, on Ray, the replicas."""

    live: bool = True
    ready: bool
    draining: bool
    state: str
    counts: dict[str, int]

    @classmethod
    def of(cls, state: str, **counts: int) -> HealthResponse:
        """Return the response for an engine state; `ready` and `draining` follow from it."""
        return cls(ready=state == "ready", draining=state == "draining", state=state, counts=counts)


def from_validation_error(kind: type[BaseModel], errors: Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """Return an error that describes the first pydantic error of a body and names its field."""
    field, first = first_error(errors)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, kind.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kind.model_fields)}"
        return InvalidRequestError(f"there is no field {field}; {hint}", field, "unknown_field")
    if first["type"] == "missing":
        known = kind.model_fields.get(field)
        description = (known and known.description) or "give it"
        return InvalidRequestError(f"{field} is missing: {description}", field, "missing_field")
    fields = {**ChatTurn.model_fields, **StreamOptionsBody.model_fields, **kind.model_fields}
    descriptions = [fields[step].description or "" for step in field.split(".") if step in fields]
    for description in descriptions:
        if description.startswith(NOT_SUPPORTED):
            reason = description.removeprefix(NOT_SUPPORTED).rstrip(".")
            message = f"{field} is not supported: {reason}; leave it out (given: {short_repr(first['input'])})"
            return InvalidRequestError(message, field, "unsupported_field")
    return InvalidRequestError(f"{field}: {first['msg']} (given: {short_repr(first['input'])})", field)
