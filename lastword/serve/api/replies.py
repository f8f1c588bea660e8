"""Replies: what the server answers, as OpenAI's API has it, with an object of our own beside the usage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]
EndedBy = Literal["model", "stop", "cap", "canvas"]


class ErrorBody(BaseModel):
    """What went wrong, in words and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """Every answer with a status of 400 or more."""

    error: ErrorBody


class Usage(BaseModel):
    """Tokens that were read and written; a prompt counts once, however many answers it gets."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Predicted(BaseModel):
    """What was known before the first token."""

    predicted_length: float | None  # the mean; None: the recipe's length policy reads none
    quantiles: dict[str, int] | None
    horizon: int  # slots of the canvas


class Ledger(Predicted):
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


class Frame(BaseModel):
    """The canvas after a pass, an entry per slot: null where a mask stands."""

    forward_passes: int
    texts: list[str | None]
    filled_at: list[int | None]  # by which pass
    confidence: list[float | None]
    tokens_computed: int
    end: int | None  # the slot of the first end token, counted from 0


class ChatMessage(BaseModel):
    """The answer's turn."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: FinishReason
    lastword: Ledger


class Reply(BaseModel):
    """What all replies with answers begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatReply(Reply):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    lastword: Ledger


class TextChoice(BaseModel):
    """One answer to a prompt."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason
    lastword: Ledger


class TextReply(Reply):
    """The answer of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Usage
    lastword: Ledger


class ModelLimits(BaseModel):
    """What can be asked of a model, and what its answers depend on."""

    chat: bool  # has it a chat template?
    slots: int  # of a canvas, at most
    positions: int  # of prompt and answer together
    weights: str  # a fingerprint: other weights under the same name are another model
    dtype: str
    hardware: str
    recipe: str  # of a request that names none


class ModelReply(BaseModel):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lastword"
    lastword: ModelLimits


class ModelsReply(BaseModel):
    """All of them: one."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


class LengthsReply(BaseModel):
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


class HealthReply(BaseModel):
    """Is it alive, does it take requests, is it stopping?"""

    live: bool = True
    ready: bool
    draining: bool
    state: str
    counts: dict[str, int]
