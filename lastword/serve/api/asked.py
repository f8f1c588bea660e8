"""Asked: from a request to the jobs that answer it, or to what is wrong with it.

Tokenising and chat templates take a while, so none of this runs in the event loop.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, NamedTuple

from lastword.canvas.canvas import validate_prompts
from lastword.decoding.sampling import check_seed
from lastword.models.base import MaskPredictor
from lastword.prompts import tokenize_prompts
from lastword.recipe.text import from_data
from lastword.serve.api.chosen import chosen, most_slots, within
from lastword.serve.api.invalid import Invalid, about
from lastword.serve.api.schema import ChatRequest, CompletionRequest, LengthsRequest, Message
from lastword.serve.job import Job
from lastword.serve.limits import Limits
from lastword.survival.interpretation import Auto, Interpretation

SEEDS = 2**53  # those that every client's JSON can hold


class Probe(NamedTuple):
    """What /v1/lengths asks the engine."""

    prompt: tuple[int, ...]
    limit: int
    ends: str
    reading: Interpretation


def jobs(request: ChatRequest | CompletionRequest, model: MaskPredictor, limits: Limits) -> list[Job]:
    """A job for every answer: those to the first prompt first. Prompts, n and recipe are within limits."""
    _check_together(request, limits)
    given: Any
    in_chat: bool | None
    if isinstance(request, ChatRequest):
        given, field = _conversation(request.messages, model), "messages"
        in_chat, count = True, 1
    else:
        given, field = request.prompt, "prompt"
        is_text = isinstance(given, str) or isinstance(given[0], str)
        in_chat, count = (False if is_text else None), _count(given)
    each = request.n or 1
    if count * each > limits.answers:
        raise Invalid(
            f"{count * each} answers were asked for ({count} prompts, n {each}); at most {limits.answers} "
            "are given to one request",
            "n" if each > 1 else field,
        )
    recipe = chosen(request, limits)
    prompts = _prompts(given, field, model, limits)
    resolved = [within(recipe, request, prompt, in_chat, model, limits) for prompt in prompts]
    stop = request.stop or ()
    first = Job(
        prompt=(),
        recipe=recipe,
        most=request.cap,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seconds=request.timeout or limits.seconds,
        in_chat=in_chat,
        frames=bool(request.diffusing),
    )
    seed = request.seed
    if seed is None:
        seed = secrets.randbelow(SEEDS) if recipe.sampling.temperature else 0
    with about("seed"):
        seeds = [check_seed("request", seed + choice) for choice in range(count * each)]
    return [
        replace(first, prompt=prompts[at // each], recipe=resolved[at // each], seed=seeds[at])
        for at in range(count * each)
    ]


def probe(request: LengthsRequest, model: MaskPredictor, limits: Limits) -> Probe:
    """What to read, of what prompt."""
    if (request.prompt is None) == (request.messages is None):
        raise Invalid("give either prompt or messages", "prompt" if request.prompt is None else "messages")
    given: Any
    if request.messages is None:
        given, field = request.prompt, "prompt"
    else:
        given, field = _conversation(request.messages, model), "messages"
    (prompt,) = _prompts(given, field, model, limits)
    most = min(most_slots(model, limits), model.max_seq_len - len(prompt))
    if request.limit is not None and request.limit > most:
        raise Invalid(
            f"a limit of {request.limit} was asked for; behind this prompt it is at most {most}",
            "limit",
        )
    with about("reading"):
        reading = Auto() if request.reading is None else from_data("reading", request.reading)
    return Probe(prompt, request.limit or most, request.ends or "document", reading)


def _check_together(request: ChatRequest | CompletionRequest, limits: Limits) -> None:
    """Refuse fields that contradict one another."""
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    if None not in (newer, request.max_tokens) and newer != request.max_tokens:
        raise Invalid(
            f"max_tokens {request.max_tokens} and max_completion_tokens {newer} were given, two names of one "
            "cap: give one of them",
            "max_completion_tokens",
        )
    if not request.stream and request.stream_options and request.stream_options.include_usage:
        raise Invalid("stream_options were given without stream: true", "stream_options")
    if not request.stream and request.diffusing:
        raise Invalid("diffusing is a way to stream: give stream: true as well", "diffusing")
    if request.timeout is not None and request.timeout > limits.seconds:
        raise Invalid(
            f"a timeout of {request.timeout:g} seconds was given; at most {limits.seconds:g} are",
            "timeout",
        )


def _conversation(messages: list[Message], model: MaskPredictor) -> list[dict[str, str]]:
    """The messages as the model's template takes them."""
    template = None if model.tokenizer is None else model.tokenizer.chat_template
    if template is None:
        raise Invalid(
            "this model has no chat template, so it cannot tell who says what: ask /v1/completions with a "
            "prompt",
            "messages",
            "no_chat_template",
        )
    # What the API calls a developer is a system message to models that know no developers.
    system = {} if "developer" in template else {"developer": "system"}
    return [{"role": system.get(m.role, m.role), "content": m.text} for m in messages]


def _count(prompt: object) -> int:
    is_list = isinstance(prompt, list) and isinstance(prompt[0], (str, list))
    return len(prompt) if is_list else 1  # type: ignore[arg-type]


def _prompts(given: Any, field: str, model: MaskPredictor, limits: Limits) -> list[tuple[int, ...]]:
    """Every prompt as ids of the model, none too long."""
    with about(field):
        batch = tokenize_prompts(model, given)
        validate_prompts(batch, model.ids)
    most = min(limits.prompt or model.max_seq_len, model.max_seq_len - 1)
    for number, prompt in enumerate(batch):
        if len(prompt) > most:
            raise Invalid(
                f"prompt {number} has {len(prompt)} tokens; at most {most} are read",
                field,
                "context_length_exceeded",
            )
    return [tuple(prompt) for prompt in batch]
