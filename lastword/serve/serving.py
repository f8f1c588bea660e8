"""Answers to HTTP requests by an engine: bodies become engine requests, events become response bodies."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from lastword.decoding.batch_state import max_slots
from lastword.decoding.sampling import Sampling, check_seed
from lastword.engines.base import compute_dtype, environment
from lastword.errors import SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint
from lastword.policies.length.wrappers import combined_traits
from lastword.prompts import tokenize_prompts, validate_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.recipe.text import from_data, to_text
from lastword.serve import protocol
from lastword.serve.engine import Engine
from lastword.serve.protocol import ChatRequest, CompletionRequest, errors_of_field
from lastword.serve.request import (
    FrameEvent,
    InvalidRequestError,
    RequestEvent,
    RequestFinished,
    RequestPlanned,
    ServerRequest,
    TextDelta,
)
from lastword.serve.settings import ServerSettings
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto
from lastword.version import __version__
from lastword.viz.frames import Frame

DEFAULT_QUANTILES = (0.5, 0.9)
MASK_SHADE = "\N{LIGHT SHADE}"  # shows a mask in the text of a canvas
FINGERPRINT = f"lastword-{__version__}"
SEED_RANGE = 2**53  # seeds that any client's JSON can represent


class ModelService:
    """Answers HTTP requests with an engine of this process."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._recipe = _resolve_default_recipe(engine.model, engine.settings)

    async def answer(self, body: ChatRequest | CompletionRequest) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a stream, or the whole response as a single item.

        Closing the generator frees the rows of the request. A refusal is raised before the first item.
        """
        engine = self._engine
        requests = await asyncio.to_thread(to_server_requests, body, engine.model, engine.settings)
        builder = ResponseBuilder(body, requests, self._name, engine.model)
        stream = engine.submit(requests)
        if not body.stream:
            yield builder.response(await stream.answers())
            return
        events, answers = stream.events(), dict[int, RequestFinished]()
        try:
            async for index, event in events:
                if isinstance(event, RequestFinished):
                    answers[index] = event
                yield builder.chunk(index, event)
        finally:
            await events.aclose()
        if body.stream_options and body.stream_options.include_usage:
            yield builder.usage_chunk([answers[index] for index in sorted(answers)])

    async def lengths(self, body: protocol.LengthsRequest) -> protocol.LengthsResponse:
        """Return the predicted length of an answer."""
        model, settings = self._engine.model, self._engine.settings
        prompt_ids = await asyncio.to_thread(_lengths_prompt, body, model, settings)
        largest = min(max_horizon(model, settings), model.max_seq_len - len(prompt_ids))
        if body.limit is not None and body.limit > largest:
            raise InvalidRequestError(
                f"limit {body.limit} was given; after this prompt it is at most {largest}", "limit"
            )
        with errors_of_field("interpretation"):
            given = body.interpretation
            interpretation = Auto() if given is None else from_data("interpretation", given)
        limit, ends = body.limit or largest, body.ends or "document"
        lengths = await self._engine.lengths(prompt_ids, limit, ends, interpretation)
        quantiles = DEFAULT_QUANTILES if body.quantiles is None else body.quantiles
        chosen = to_text(interpretation) if lengths.explanation is None else str(lengths.explanation)
        return protocol.LengthsResponse(
            model=self._name,
            prompt_tokens=len(prompt_ids),
            limit=lengths.slots,
            mean=lengths.mean.item(),
            quantiles={str(q): int(lengths.quantile(q)) for q in quantiles},
            curve=[round(share, 9) for share in lengths.survival.tolist()],
            tail=lengths.tail.item(),
            interpretation=chosen,
        )

    async def health(self) -> protocol.HealthResponse:
        """Return the state of the engine."""
        load = self._engine.load()
        return protocol.HealthResponse.of(self._engine.state, working=load.running, waiting=load.waiting)

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return self._engine.metrics.text()

    async def served_model(self) -> protocol.ServedModel:
        """Return the limits of the model."""
        model = self._engine.model
        return protocol.ServedModel(
            chat=self._engine.tokenizer.chat_template is not None,
            default_max_new_tokens=max_horizon(model, self._engine.settings),
            max_seq_len=model.max_seq_len,
            weights=fingerprint(model),
            dtype=compute_dtype(model),
            hardware=environment(model)["hardware"],
            recipe=self._recipe.label(),
        )


def max_horizon(model: MaskPredictor, settings: ServerSettings) -> int:
    """Return the largest number of slots that a request may have."""
    return settings.max_horizon or model.default_max_new_tokens


def _resolve_default_recipe(model: MaskPredictor, settings: ServerSettings) -> Recipe:
    """Return the recipe of requests without one; raise SettingError if it cannot run on this server."""
    recipe, allowed = settings.recipe or Recipe(), max_horizon(model, settings)
    horizon = combined_traits(recipe.length).upper_bound
    if horizon > allowed:
        raise SettingError(
            f"the recipe of the server has {horizon} slots, and {allowed} are allowed; give a shorter "
            "length, or a larger --max-horizon"
        )
    return resolve(recipe, model, available_slots=allowed)


# ---- requests ----


def to_server_requests(
    body: ChatRequest | CompletionRequest, model: MaskPredictor, settings: ServerSettings
) -> list[ServerRequest]:
    """Validate a body and return one engine request per answer, ordered by prompt."""
    _check_combinations(body, settings)
    prompt: Any
    num_prompts, choices, in_chat = 1, body.n or 1, None
    if isinstance(body, ChatRequest):
        prompt, field, in_chat = _conversation(body.messages, model), "messages", True
    else:
        prompt, field = body.prompt, "prompt"
        if isinstance(prompt, list) and isinstance(prompt[0], (str, list)):
            num_prompts = len(prompt)
        if isinstance(prompt, str) or isinstance(prompt[0], str):
            in_chat = False
    if num_prompts * choices > settings.max_choices:
        raise InvalidRequestError(
            f"{num_prompts * choices} answers were requested ({num_prompts} prompts, n {choices}); at most "
            f"{settings.max_choices} are allowed per request",
            "n" if choices > 1 else field,
        )
    recipe = choose_recipe(body, settings)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    seed = body.seed
    if seed is None:
        seed = secrets.randbelow(SEED_RANGE) if recipe.sampling.temperature else 0
    with errors_of_field("seed"):
        seeds = [check_seed("request", seed + answer) for answer in range(num_prompts * choices)]
    requests = list[ServerRequest]()
    for prompt_ids in _tokenize(prompt, field, model, settings):
        resolved = _resolve_within_limits(recipe, body, prompt_ids, in_chat, model, settings)
        requests += [
            ServerRequest(
                prompt_ids=prompt_ids,
                recipe=resolved,
                seed=seeds[len(requests) + choice],
                max_new_tokens=body.max_new_tokens,
                stop=stop,
                timeout=body.timeout or settings.request_timeout,
                in_chat=in_chat,
                stream_frames=bool(body.diffusing),
            )
            for choice in range(choices)
        ]
    return requests


def _check_combinations(body: ChatRequest | CompletionRequest, settings: ServerSettings) -> None:
    """Raise InvalidRequestError for fields that contradict each other."""
    completion_tokens = body.max_completion_tokens if isinstance(body, ChatRequest) else None
    if None not in (completion_tokens, body.max_tokens) and completion_tokens != body.max_tokens:
        raise InvalidRequestError(
            f"max_tokens {body.max_tokens} and max_completion_tokens {completion_tokens} were given, which "
            "are two names of one limit; give one of them",
            "max_completion_tokens",
        )
    if not body.stream and body.stream_options and body.stream_options.include_usage:
        raise InvalidRequestError("stream_options was given without stream: true", "stream_options")
    if not body.stream and body.diffusing:
        raise InvalidRequestError("diffusing needs a stream; give stream: true as well", "diffusing")
    if body.timeout is not None and body.timeout > settings.request_timeout:
        raise InvalidRequestError(
            f"a timeout of {body.timeout:g} seconds was given; at most {settings.request_timeout:g} are allowed",
            "timeout",
        )


def choose_recipe(body: protocol.AnswerRequest, settings: ServerSettings) -> Recipe:
    """Return the requested recipe, or the server's, with the length and sampling of the request."""
    for name in ("recipe", "length"):
        value = getattr(body, name)
        is_custom = isinstance(value, dict) or (value is not None and name == "length")
        if settings.named_recipes_only and is_custom:
            raise InvalidRequestError(f"this server takes recipes by name only; leave {name} out", name)
    with errors_of_field("recipe"):
        if body.recipe is None:
            recipe = settings.recipe or Recipe()
        elif isinstance(body.recipe, dict):
            recipe = Recipe.from_json(json.dumps(body.recipe))
        else:
            recipe = Recipe.coerce(body.recipe)
    if body.length is not None:
        with errors_of_field("length"):
            recipe = replace(recipe, length=from_data("length", body.length))
    sampling = recipe.sampling
    with errors_of_field("temperature"):
        if body.temperature == 0 and sampling.score == "model":  # nothing is left to filter
            sampling = replace(sampling, temperature=0.0, top_p=None, top_k=None)
        elif body.temperature is not None:
            sampling = replace(sampling, temperature=body.temperature)
    with errors_of_field("top_p"):
        Sampling(temperature=1.0, top_p=body.top_p)  # checks the value
        is_greedy = sampling.temperature == 0 and sampling.score == "model"
        # Clients send 1 by default, which filters nothing; nothing else can be combined with temperature 0.
        if body.top_p not in (None, 1) and not (is_greedy and body.temperature == 0):
            sampling = replace(sampling, top_p=body.top_p)
    return replace(recipe, sampling=sampling)


def _resolve_within_limits(
    recipe: Recipe,
    body: protocol.AnswerRequest,
    prompt_ids: tuple[int, ...],
    in_chat: bool | None,
    model: MaskPredictor,
    settings: ServerSettings,
) -> Recipe:
    """Resolve unset values of a recipe within the limits; raise InvalidRequestError for larger ones."""
    field = "recipe" if body.length is None else "length"
    allowed, room = max_horizon(model, settings), model.max_seq_len - len(prompt_ids)

    def check(horizon: int | None) -> None:
        if horizon is None or horizon > min(allowed, room):
            is_default = body.recipe is None and body.length is None
            raise InvalidRequestError(
                f"{'the recipe of the server has' if is_default else 'the request is for'} "
                f"{'any number of' if horizon is None else horizon} slots; this server allows {allowed}, "
                f"and the prompt leaves {room} of the model's context",
                field,
                "context_length_exceeded" if horizon is not None and horizon > room else "invalid_request",
            )

    check(combined_traits(recipe.length).upper_bound)
    with errors_of_field(field):
        resolved = resolve(recipe, model, [prompt_ids], in_chat=[in_chat], available_slots=allowed)
    check(max_slots(resolved))
    return resolved


def _lengths_prompt(body: protocol.LengthsRequest, model: MaskPredictor, settings: ServerSettings) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        field = "prompt" if body.prompt is None else "messages"
        raise InvalidRequestError("give either prompt or messages", field)
    if body.messages is None:
        return _tokenize(body.prompt, "prompt", model, settings)[0]
    return _tokenize(_conversation(body.messages, model), "messages", model, settings)[0]


def _conversation(messages: list[protocol.ChatTurn], model: MaskPredictor) -> list[dict[str, str]]:
    """Return the messages for the chat template of the model."""
    template = None if model.tokenizer is None else model.tokenizer.chat_template
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template, so roles cannot be told apart; use /v1/completions with a prompt",
            "messages",
            "no_chat_template",
        )
    # A template without developers takes their messages as system messages.
    roles = {} if "developer" in template else {"developer": "system"}
    return [{"role": roles.get(turn.role, turn.role), "content": turn.text} for turn in messages]


def _tokenize(prompt: Any, field: str, model: MaskPredictor, settings: ServerSettings) -> list[tuple[int, ...]]:
    """Return the validated token ids of each prompt."""
    with errors_of_field(field):
        prompts = tokenize_prompts(model, prompt)
        validate_prompts(prompts, model.ids)
    limit = min(settings.max_prompt_tokens or model.max_seq_len, model.max_seq_len - 1)
    for number, prompt_ids in enumerate(prompts):
        if len(prompt_ids) > limit:
            raise InvalidRequestError(
                f"prompt {number} has {len(prompt_ids)} tokens; at most {limit} are allowed",
                field,
                "context_length_exceeded",
            )
    return [tuple(prompt_ids) for prompt_ids in prompts]


# ---- responses ----


class ResponseBuilder:
    """Builds the response to one HTTP request, whole or in chunks.

    The first chunk of a choice has its role and its predicted length, the last one its finish reason and
    details. With `diffusing`, the text of each chunk is the whole answer and replaces the one before.
    """

    def __init__(
        self, body: protocol.AnswerRequest, requests: Sequence[ServerRequest], name: str, model: MaskPredictor
    ) -> None:
        self._body, self._requests, self._model = body, requests, model
        self._is_chat = isinstance(body, ChatRequest)
        self._includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": FINGERPRINT,
        }

    def response(self, answers: Sequence[RequestFinished]) -> dict[str, Any]:
        """Return the response with all answers."""
        choices = list[dict[str, Any]]()
        for index, (request, answer) in enumerate(zip(self._requests, answers)):
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            content = {"message": message} if self._is_chat else {"text": answer.text}
            details = answer_details(request, answer).model_dump()
            reason = finish_reason(answer)
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": reason, "lastword": details})
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, **self._totals(answers)}

    def chunk(self, index: int, event: RequestEvent) -> dict[str, Any]:
        """Return the chunk of an event."""
        if isinstance(event, RequestPlanned):
            predicted = predicted_length(event.lengths, event.horizon)
            return self._choice(index, "", is_first=True, lastword=predicted)
        if isinstance(event, FrameEvent):
            return self._frame_chunk(index, event.frame)
        if isinstance(event, TextDelta):
            return self._choice(index, event.text)
        details = answer_details(self._requests[index], event).model_dump()
        text = event.text if self._body.diffusing else None
        chunk = self._choice(index, text, finish_reason=finish_reason(event), lastword=details)
        return chunk | (_diffusion_meta(event.text, 1.0) if self._body.diffusing else {})

    def usage_chunk(self, answers: Sequence[RequestFinished]) -> dict[str, Any]:
        """Return the last chunk, with the usage and the details of all answers together."""
        return {**self._head, "object": self._chunk_object, "choices": [], **self._totals(answers)}

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _totals(self, answers: Sequence[RequestFinished]) -> dict[str, Any]:
        written = sum(answer.num_tokens for answer in answers)
        # Answers to one prompt share it, and it counts once.
        read = sum({id(request.prompt_ids): len(request.prompt_ids) for request in self._requests}.values())
        details = [answer_details(*pair) for pair in zip(self._requests, answers)]
        return {
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
            "lastword": combined_details(details, written).model_dump(),
        }

    def _frame_chunk(self, index: int, frame: Frame) -> dict[str, Any]:
        ends = self._model.ids.ends
        text, share = render_canvas(frame, self._model.tokenizer, ends)  # type: ignore[arg-type]
        canvas = {
            "forward_passes": frame.forward_passes,
            "texts": [None if token is None else text for token, text in zip(frame.tokens, frame.texts)],
            "filled_at": list(frame.filled_at),
            "confidence": list(frame.confidence),
            "tokens_computed": frame.tokens_computed,
            "end": frame.end,
        }
        return self._choice(index, text, lastword={"frame": canvas}) | _diffusion_meta(text, share)

    def _choice(self, index: int, text: str | None, *, is_first: bool = False, **fields: Any) -> dict[str, Any]:
        """Return a chunk with one choice; `text` None adds no text."""
        if self._is_chat:
            delta = {} if text is None else {"content": text}
            content: dict[str, Any] = {"delta": {"role": "assistant", **delta} if is_first else delta}
        else:
            content = {"text": text or ""}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": None, **fields}
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._head, "object": self._chunk_object, "choices": [choice], **usage}


def finish_reason(answer: RequestFinished) -> protocol.FinishReason:
    """Return the reason in OpenAI's terms; a truncated answer never has `stop`."""
    return "length" if answer.truncated else "stop"


def predicted_length(lengths: LengthDistribution | None, horizon: int) -> dict[str, Any]:
    """Return the fields of AnswerDetails that are known before the first token."""
    mean = quantiles = None
    if lengths is not None:
        mean = round(lengths.mean.item(), 3)
        quantiles = {str(q): int(lengths.quantile(q)) for q in DEFAULT_QUANTILES}
    return {"predicted_length": mean, "quantiles": quantiles, "horizon": horizon}


def answer_details(request: ServerRequest, answer: RequestFinished) -> protocol.AnswerDetails:
    """Return the predicted length, the cost and the end of an answer."""
    generation, cap = answer.generation, request.max_new_tokens
    ended_by: protocol.EndedBy = "canvas"
    if answer.stop_reason is not None:
        ended_by = "stop"
    elif not answer.truncated:
        ended_by = "model"
    elif cap is not None and answer.num_tokens >= cap:
        ended_by = "cap"
    passes = generation.probe_cost.forward_passes + generation.cost.forward_passes
    return protocol.AnswerDetails(
        **predicted_length(generation.lengths, generation.horizon),
        forward_passes=passes,
        tokens_computed=generation.probe_cost.tokens_computed + generation.cost.tokens_computed,
        tokens_per_forward=tokens_per_forward(answer.num_tokens, passes),
        seconds_queued=round(answer.seconds_queued, 6),
        seconds_decoding=round(answer.seconds_decoding, 6),
        recipe=generation.recipe.label(),
        seed=request.seed,
        ended_by=ended_by,
    )


def combined_details(details: Sequence[protocol.AnswerDetails], num_tokens: int) -> protocol.AnswerDetails:
    """Return the details of several answers together, which have this number of tokens."""
    first = details[0]
    if len(details) == 1:
        return first
    means = [answer.predicted_length for answer in details if answer.predicted_length is not None]
    passes = sum(answer.forward_passes for answer in details)
    return protocol.AnswerDetails(
        predicted_length=round(sum(means), 3) if len(means) == len(details) else None,
        quantiles=None,
        horizon=sum(answer.horizon for answer in details),
        forward_passes=passes,
        tokens_computed=sum(answer.tokens_computed for answer in details),
        tokens_per_forward=tokens_per_forward(num_tokens, passes),
        seconds_queued=max(answer.seconds_queued for answer in details),
        seconds_decoding=max(answer.seconds_decoding for answer in details),
        recipe="; ".join(dict.fromkeys(answer.recipe for answer in details)),
        seed=first.seed,
        ended_by=first.ended_by if len({answer.ended_by for answer in details}) == 1 else None,
    )


def render_canvas(frame: Frame, tokenizer: TextTokenizer, ends: Sequence[int]) -> tuple[str, float]:
    """Return the text of a canvas, with a shade for each mask, and the share of filled slots."""
    pieces, run = list[str](), list[int]()
    for token in frame.tokens:
        if token in ends:
            break
        if token is None:
            pieces += [tokenizer.decode(run), MASK_SHADE]
            run = []
        else:
            run.append(token)
    filled = sum(token is not None for token in frame.tokens)
    return "".join([*pieces, tokenizer.decode(run)]), filled / max(len(frame.tokens), 1)


def tokens_per_forward(tokens: int, passes: int) -> float:
    """Return the rounded number of tokens per forward pass; 0 without any pass."""
    return round(tokens / passes, 4) if passes else 0.0


def _diffusion_meta(text: str, share: float) -> dict[str, Any]:
    """Return Inception Mercury's fields."""
    return {"diffusion_meta": {"diffusion_content": text, "diffusion_progress": round(share, 4)}}
