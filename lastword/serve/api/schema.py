"""Schema: what a request may hold. Unknown fields are refused, and so is what nothing here can do.

Only shapes are checked here. What a recipe, a length or a sampling may be, its parts check themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from lastword.io.schema import CHECKED, LongText, Seed, Text
from lastword.serve.api.unsupported import Unsupported
from lastword.validation import MAX_COUNT, MAX_SLOTS


def _in_words(words: str) -> WrapValidator:
    """One sentence in the place of what each branch of a union has to say."""

    def check(value: object, inner: Callable[[object], object]) -> object:
        try:
            return inner(value)
        except ValidationError as wrong:
            raise PydanticCustomError("shape", "{words}", {"words": words}) from wrong

    return WrapValidator(check)


MOST_STOPS = 4
StopText = Annotated[str, Field(min_length=1, max_length=1_000)]
Stops = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)],
    _in_words(f"give a text, or a list of at most {MOST_STOPS} texts, none of them empty"),
]
Ids = Annotated[list[int], Field(min_length=1, max_length=MAX_SLOTS)]
Prompts = Annotated[
    LongText
    | Annotated[list[LongText], Field(min_length=1)]
    | Ids
    | Annotated[list[Ids], Field(min_length=1)],
    _in_words("give text, a list of texts, a list of token ids, or a list of lists of them"),
]
OnePrompt = Annotated[LongText | Ids, _in_words("give text, or a list of token ids")]
Named = Annotated[Text | dict[str, Any], _in_words("give a name, or an object with a name and fields")]
Cap = Annotated[int, Field(ge=1, le=MAX_COUNT)]
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

    model_config = CHECKED

    type: Literal["text"]
    text: LongText


Content = Annotated[
    LongText | Annotated[list[TextPart], Field(min_length=1)],
    _in_words("give text, or a list of parts of type text; images, sound and files are not read"),
]


class Message(BaseModel):
    """One turn of a conversation. What clients send back of an answer of ours is taken."""

    model_config = CHECKED

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
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
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class StreamOptions(BaseModel):
    """What a stream says beside the text."""

    model_config = CHECKED

    include_usage: bool | None = Field(None, description="A last chunk with the usage.")
    include_obfuscation: Annotated[Any, Unsupported("chunks are not padded", (False,))] = None


class Asking(BaseModel):
    """What a request for answers may hold, whatever its prompt looks like."""

    model_config = CHECKED

    model: Text = Field(description="the name of the model, as /v1/models has it")
    n: int | None = Field(None, ge=1, description="Answers to each prompt.")
    stream: bool | None = Field(None, description="Text as soon as it can no longer change.")
    stream_options: StreamOptions | None = None
    max_tokens: Cap | None = Field(None, description="Tokens at most; it does not size the canvas.")
    temperature: float | None = Field(None, description="Left out, it is the recipe's.")
    top_p: float | None = Field(None, description="1 changes nothing.")
    seed: Seed | None = Field(None, description="The first answer's; the next one's is one more.")
    stop: Stops | None = Field(None, description="The text ends before the first of these.")
    user: Text | None = Field(None, description="Taken, and not used.")

    recipe: Named | None = Field(
        None, description="A recipe's name, or one as JSON. Left out, it is the server's."
    )
    length: Named | None = Field(None, description="A length policy: its text, or as JSON.")
    timeout: Seconds | None = Field(None, description="Seconds until the answer is of no use.")
    diffusing: bool | None = Field(None, description="Stream the whole canvas after each pass.")

    frequency_penalty: Annotated[Any, Unsupported(NO_PENALTY, (0,))] = None
    presence_penalty: Annotated[Any, Unsupported(NO_PENALTY, (0,))] = None
    logit_bias: Annotated[Any, Unsupported(NO_BIAS, ({},))] = None

    @property
    def cap(self) -> int | None:
        """Tokens at most."""
        return self.max_tokens


class ChatRequest(Asking):
    """A request to /v1/chat/completions."""

    messages: Messages = Field(description="the conversation so far, a list")
    max_completion_tokens: Cap | None = Field(None, description="The newer name of max_tokens.")
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


class CompletionRequest(Asking):
    """A request to /v1/completions."""

    prompt: Prompts = Field(description="text or token ids, one of them or a list")

    best_of: Annotated[Any, Unsupported("answers are not ranked: ask for n", (1,))] = None
    echo: Annotated[Any, Unsupported("the answer comes without its prompt", (False,))] = None
    logprobs: Annotated[Any, Unsupported(NO_LOGPROBS, (False,))] = None
    suffix: Annotated[Any, Unsupported("the answer ends where the model ends it", ("",))] = None


class LengthsRequest(BaseModel):
    """A request to /v1/lengths: a prompt, or messages."""

    model_config = CHECKED

    model: Text | None = Field(None, description="The name of the model; left out, the one here.")
    prompt: OnePrompt | None = None
    messages: Messages | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = Field(
        None, description="Masks that the probe looks at."
    )
    ends: Literal["document", "any"] | None = Field(
        None, description="document: the paper's signal; any: the turn end counts, too."
    )
    reading: Named | None = Field(None, description="What the signal is taken for; auto picks.")
    quantiles: Annotated[list[Quantile], Field(max_length=16)] | None = None
