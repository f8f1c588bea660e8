"""Conversion of HTTP bodies to engine requests, and of engine events to response bodies."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from itertools import accumulate, groupby, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.api import Generation
from lastword.decoding.step import max_slots
from lastword.engines.base import compute_dtype, environment
from lastword.errors import LastwordError, SettingError
from lastword.models.base import MaskPredictor
from lastword.models.tokenizer import LONG_TEXT, Tokenizer
from lastword.models.weights import fingerprint
from lastword.policies.length.policy import Plan
from lastword.policies.length.wrappers import combined_traits
from lastword.prompts import prompts_in_chat, tokenize_prompts, validate_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.recipe.text import from_data, to_text
from lastword.serve import protocol
from lastword.serve.protocol import AnswerBody, AnswerDetails, ChatRequest, CompletionRequest, LengthsRequest
from lastword.serve.request import InvalidRequestError, RequestEvent, RequestFinished, ServerError, ServerRequest
from lastword.serve.settings import ServerSettings
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto
from lastword.version import __version__
from lastword.viz.frames import Frame

if TYPE_CHECKING:
    from lastword.serve.engine import ServerEngine

Result = TypeVar("Result")

DEFAULT_QUANTILES = (0.5, 0.9)
MASK_SHADE = "\N{LIGHT SHADE}"  # shows a mask in streamed text
FINGERPRINT = f"lastword-{__version__}"
SEED_RANGE = 2**53  # random seeds are smaller, so that JSON clients with doubles represent them exactly
MAX_PENDING_TEXT = 16_000_000  # characters that wait to be tokenized, which takes about ten seconds


class TokenizerPool:
    """Two threads that tokenize requests, one of them only long texts, which do not delay the short ones."""

    def __init__(self) -> None:
        self._threads = [ThreadPoolExecutor(1, "lastword-tokenizer") for _ in range(2)]
        self._pending, self._lock = [0, 0], Lock()  # characters that wait for each thread

    async def run(self, function: Callable[..., Result], body: AnswerBody | LengthsRequest, *arguments: Any) -> Result:
        """Return the result of a function of a body; raise ServerError if too much text waits already."""
        prompts = getattr(body, "prompt", None) or [turn.content for turn in getattr(body, "messages", None) or ()]
        size = sum(map(len, prompts)) + 100 * len(prompts)
        thread = int(size > LONG_TEXT)
        with self._lock:
            if self._pending[thread] and self._pending[thread] + size > MAX_PENDING_TEXT:
                message = "too much text waits to be tokenized; try again in a second"
                raise ServerError(message, "overloaded", retry_after=1)
            self._pending[thread] += size

        def release(job: Future[Result]) -> None:
            with self._lock:
                self._pending[thread] -= size

        job = self._threads[thread].submit(function, body, *arguments)
        job.add_done_callback(release)  # the text of a cancelled request counts until its job has ended
        return await asyncio.wrap_future(job)


class ModelService:
    """A server backend with an engine in this process."""

    def __init__(self, engine: ServerEngine, name: str) -> None:
        self._engine, self._model, self._settings, self._name = engine, engine.model, engine.settings, name
        allowed, recipe = max_horizon(self._model, self._settings), self._settings.recipe or Recipe()
        horizon = combined_traits(recipe.length).upper_bound
        if horizon > allowed:
            message = f"the recipe of the server has {horizon} slots, and {allowed} are allowed"
            raise SettingError(f"{message}; give a shorter length, or a larger --max-horizon")
        self._tokenizer_pool = TokenizerPool()
        # Text with a special token needs a copy of the tokenizer, which takes up to a second to make.
        engine.tokenizer.encode(getattr(engine.tokenizer, "eos", None) or "")
        self._recipe = resolve(recipe, self._model, available_slots=allowed)  # raises if the model cannot run it

    async def answer(self, body: AnswerBody) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a stream, or the whole response as a single item if `stream` is off.

        The last chunk of a stream has the usage and no choices, also for clients that do not want it. Closing the
        generator frees the rows of the request. A request is rejected before the first item.
        """
        requests = await self._tokenizer_pool.run(to_server_requests, body, self._model, self._settings)
        builder, stream = ResponseBuilder(body, requests, self._name, self._model), self._engine.submit(requests)
        if body.stream:
            async with aclosing(stream.events()) as events:
                async for index, event in events:
                    yield builder.chunk(index, event)
        yield builder.response(await stream.answers())

    async def lengths(self, body: LengthsRequest) -> protocol.LengthsResponse:
        """Return the length distribution of an answer, predicted without decoding."""
        (prompt_ids,), _ = await self._tokenizer_pool.run(tokenize, body, self._model, self._settings)
        largest = min(max_horizon(self._model, self._settings), self._model.max_seq_len - len(prompt_ids))
        if body.limit is not None and body.limit > largest:
            message = f"limit {body.limit} was given; after this prompt it is at most {largest}"
            raise InvalidRequestError(message, "limit")
        with errors_of_field("interpretation"):
            given = body.interpretation
            interpretation = Auto() if given is None else from_data("interpretation", given)
        limit, ends = body.limit or largest, body.ends or "document"
        lengths = await self._engine.lengths(prompt_ids, limit, ends, interpretation)
        return protocol.LengthsResponse(
            model=self._name,
            prompt_tokens=len(prompt_ids),
            limit=lengths.slots,
            mean=lengths.mean.item(),
            quantiles=_quantiles(lengths, DEFAULT_QUANTILES if body.quantiles is None else body.quantiles),
            curve=[round(share, 9) for share in lengths.survival.tolist()],
            tail=lengths.tail.item(),
            interpretation=to_text(interpretation) if lengths.explanation is None else str(lengths.explanation),
        )

    async def health(self) -> protocol.HealthResponse:
        """Return the state of the engine and its numbers of running and waiting answers."""
        load = self._engine.load()
        return protocol.HealthResponse.of(self._engine.state, working=load.running, waiting=load.waiting)

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return self._engine.metrics.text()

    async def served_model(self) -> protocol.ServedModel:
        """Return the limits of the model and the settings that affect its answers."""
        return protocol.ServedModel(
            chat=self._engine.tokenizer.chat_template is not None,
            single_turn=getattr(self._model, "single_turn", False),
            default_max_new_tokens=max_horizon(self._model, self._settings),
            max_seq_len=self._model.max_seq_len,
            weights=fingerprint(self._model),
            dtype=compute_dtype(self._model),
            hardware=environment(self._model)["hardware"],
            recipe=self._recipe.label(),
        )


def max_horizon(model: MaskPredictor, settings: ServerSettings) -> int:
    """Return the largest number of slots that an answer may have."""
    return settings.max_horizon or model.default_max_new_tokens


# ---- requests ----


@contextmanager
def errors_of_field(param: str) -> Iterator[None]:
    """Convert a LastwordError raised in the block to an InvalidRequestError for the field `param`."""
    try:
        yield
    except ServerError:
        raise
    except LastwordError as error:
        raise InvalidRequestError(str(error), param) from error


def to_server_requests(body: AnswerBody, model: MaskPredictor, settings: ServerSettings) -> list[ServerRequest]:
    """Validate a body and return one engine request per answer, ordered by prompt."""
    if body.timeout is not None and body.timeout > settings.timeout:
        message = f"a timeout of {body.timeout:g} seconds was given; at most {settings.timeout:g} are allowed"
        raise InvalidRequestError(message, "timeout")
    choices = body.n or 1
    num_answers = check_num_answers(body, settings)
    recipe = choose_recipe(body, settings)
    prompts, in_chat = tokenize(body, model, settings)
    seed = body.seed
    if seed is None:
        seed = secrets.randbelow(SEED_RANGE) if recipe.sampling.temperature else 0
    resolved = [_resolve_within_limits(recipe, body, prompt_ids, in_chat, model, settings) for prompt_ids in prompts]
    return [
        ServerRequest(
            prompt_ids=prompts[answer // choices],
            recipe=resolved[answer // choices],
            seed=seed + answer,
            max_new_tokens=body.max_tokens,
            stop=tuple(body.stop or ()),
            timeout=body.timeout or settings.timeout,
            stream_frames=bool(body.diffusing),
            logprobs=body.logprobs is not None,
        )
        for answer in range(num_answers)
    ]


def check_num_answers(body: AnswerBody, settings: ServerSettings) -> int:
    """Return the number of answers that a body requests; raise InvalidRequestError if it is too large."""
    choices, prompts = body.n or 1, len(body.prompt) if isinstance(body, CompletionRequest) else 1
    if prompts * choices > settings.max_choices:
        message = f"{prompts * choices} answers were requested; at most {settings.max_choices} are allowed per request"
        raise InvalidRequestError(message, "n" if choices > 1 else "prompt")
    return prompts * choices


def choose_recipe(body: protocol.AnswerSettings, settings: ServerSettings) -> Recipe:
    """Return the requested recipe, or the server's, with the length and sampling of the request."""
    if settings.named_recipes_only and (body.length is not None or isinstance(body.recipe, dict)):
        name = "recipe" if isinstance(body.recipe, dict) else "length"
        raise InvalidRequestError(f"this server takes recipes by name only; leave {name} out", name)
    with errors_of_field("recipe"):
        if isinstance(body.recipe, dict):
            recipe = Recipe.from_json(json.dumps(body.recipe))
        else:
            recipe = Recipe.coerce(settings.recipe if body.recipe is None else body.recipe)
    if body.length is not None:
        with errors_of_field("length"):
            recipe = replace(recipe, length=from_data("length", body.length))
    top_p = None if body.top_p == 1 else body.top_p  # clients send 1, which has no effect, by default
    temperature = recipe.sampling.temperature if body.temperature is None else body.temperature
    # At temperature 0, `with_sampling` removes the filters, which have no effect.
    given: dict[str, Any] = {"temperature": temperature, "top_k": body.top_k, "top_p": top_p}
    with errors_of_field("temperature"):
        return recipe.with_sampling(**given)


def _resolve_within_limits(
    recipe: Recipe,
    body: AnswerBody,
    prompt_ids: Sequence[int],
    in_chat: Collection[bool | None],
    model: MaskPredictor,
    settings: ServerSettings,
) -> Recipe:
    """Return the recipe resolved for a prompt; raise InvalidRequestError if it needs too many slots."""
    field = "recipe" if body.length is None else "length"
    allowed, room = max_horizon(model, settings), model.max_seq_len - len(prompt_ids)
    horizon: int | None = combined_traits(recipe.length).upper_bound
    if horizon is not None and horizon <= min(allowed, room):
        with errors_of_field(field):
            resolved = resolve(recipe, model, [prompt_ids], in_chat=in_chat, available_slots=allowed)
        horizon = max_slots(resolved)
        if horizon is not None and horizon <= min(allowed, room):
            return resolved
    owner = "the recipe of the server" if body.recipe is None and body.length is None else "the request"
    raise InvalidRequestError(
        f"{owner} has {horizon or 'any number of'} slots; this server allows {allowed}, and the prompt leaves {room} "
        "of the model's context",
        field,
        "context_length_exceeded" if horizon is not None and horizon > room else "invalid_request",
    )


def tokenize(
    body: AnswerBody | LengthsRequest, model: MaskPredictor, settings: ServerSettings
) -> tuple[list[tuple[int, ...]], list[bool | None]]:
    """Return the validated token ids of each prompt, and their kinds (`prompts_in_chat`)."""
    field = "messages" if getattr(body, "messages", None) else "prompt"
    given: Any = getattr(body, field)
    prompts = [_conversation(given, model)] if field == "messages" else given
    limit = min(settings.max_prompt_tokens or model.max_seq_len, model.max_seq_len - 1)
    texts = ["".join(turn["content"] for turn in prompts[0])] if field == "messages" else prompts
    for text in texts:
        if isinstance(text, str) and isinstance(model.tokenizer, Tokenizer) and not model.tokenizer.fits(text, limit):
            message = f"a text of {len(text)} characters was given; at most {limit} tokens are allowed"
            raise InvalidRequestError(message, field, "context_length_exceeded")
    with errors_of_field(field):
        token_ids = tokenize_prompts(model, prompts)
        for number, prompt_ids in enumerate(token_ids):
            if len(prompt_ids) > limit:
                message = f"prompt {number} has {len(prompt_ids)} tokens; at most {limit} are allowed"
                raise InvalidRequestError(message, field, "context_length_exceeded")
        validate_prompts(token_ids, model.ids)
    return [tuple(prompt_ids) for prompt_ids in token_ids], prompts_in_chat(prompts)


def _conversation(messages: list[protocol.ChatTurn], model: MaskPredictor) -> list[dict[str, Any]]:
    """Return the messages for the model's chat template; raise InvalidRequestError if it has none."""
    template = None if model.tokenizer is None else model.tokenizer.chat_template
    if template is None:
        message = "this model has no chat template, so roles cannot be told apart; use /v1/completions with a prompt"
        raise InvalidRequestError(message, "messages", "no_chat_template")
    # If the template has no developer role, developer messages become system messages.
    roles = {} if "developer" in template else {"developer": "system"}
    return [{"role": roles.get(turn.role, turn.role), "content": turn.content} for turn in messages]


# ---- responses ----


class ResponseBuilder:
    """A builder of the response to one HTTP request, whole or in chunks.

    The first chunk of a choice has its role and its predicted length, the last one its finish reason and details.
    With `diffusing`, the text of each chunk is the whole answer and replaces that of the chunk before.
    """

    def __init__(
        self, body: ChatRequest | CompletionRequest, requests: Sequence[ServerRequest], name: str, model: MaskPredictor
    ) -> None:
        self._body, self._requests, self._model = body, requests, model
        self._is_chat = isinstance(body, ChatRequest)
        self._includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head = response_head(self._is_chat, uuid.uuid4().hex, name)
        if self._is_chat and body.stream:
            self._head["object"] = "chat.completion.chunk"

    def response(self, answers: Sequence[RequestFinished]) -> dict[str, Any]:
        """Return the whole response or, of a stream, the last chunk: usage and details without choices."""
        written = sum(len(answer.generation.tokens) for answer in answers)
        read = sum(len(request.prompt_ids) for request in self._requests[:: self._body.n or 1])
        details = [self._details(index, answer) for index, answer in enumerate(answers)]
        texts = [] if self._body.stream else [answer.generation.text or "" for answer in answers]
        body = response_body(self._head, texts, details, read, written)
        for choice, answer in zip(body["choices"], answers):
            choice["logprobs"] = self._logprobs(answer)
        return body

    def chunk(self, index: int, event: RequestEvent) -> dict[str, Any]:
        """Return the chunk for an event of the answer `index`."""
        if isinstance(event, Plan):
            role = {"role": "assistant"} if self._is_chat else {}
            return self._chunk(index, "", role, lastword=_prediction(event.lengths, event.max_horizon))
        if isinstance(event, str):
            return self._chunk(index, event)
        if isinstance(event, Frame):
            return self._frame_chunk(index, event)
        ending = _ending(self._details(index, event)) | {"logprobs": self._logprobs(event)}
        if not self._body.diffusing:
            return self._chunk(index, None, **ending)
        text = event.generation.text or ""
        return self._chunk(index, text, **ending) | _diffusion_meta(text, 1.0)

    def _details(self, index: int, answer: RequestFinished) -> AnswerDetails:
        request, seconds = self._requests[index], (answer.seconds_queued, answer.seconds_decoding)
        return answer_details(answer.generation, request.seed, request.max_new_tokens, *seconds)

    def _logprobs(self, answer: RequestFinished) -> dict[str, Any] | None:
        """Return the log-probabilities of all tokens in OpenAI's format, or None if they were not requested."""
        if answer.logprobs is None:
            return None
        if self._is_chat:
            content = [
                {"token": text, "logprob": value, "bytes": [*text.encode(errors="replace")], "top_logprobs": []}
                for text, value in answer.logprobs
            ]
            return {"content": content, "refusal": None}
        tokens = [text for text, _ in answer.logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [value for _, value in answer.logprobs],
            "top_logprobs": [{text: value} for text, value in answer.logprobs] if self._body.logprobs else None,
            "text_offset": [*accumulate(map(len, tokens), initial=0)][:-1],
        }

    def _frame_chunk(self, index: int, frame: Frame) -> dict[str, Any]:
        text, share = render_canvas(frame, self._model)
        canvas = {
            "forward_passes": frame.forward_passes,
            "texts": [None if token is None else text for token, text in zip(frame.tokens, frame.texts)],
            "filled_at": list(frame.filled_at),
            "confidence": list(frame.confidence),
            "tokens_computed": frame.tokens_computed,
            "end": frame.end,
        }
        return self._chunk(index, text, lastword={"frame": canvas}) | _diffusion_meta(text, share)

    def _chunk(self, index: int, text: str | None, role: Mapping[str, str] = {}, **fields: Any) -> dict[str, Any]:
        """Return a chunk with one choice; if `text` is None, a chat delta has no content."""
        content: dict[str, Any] = {"text": text or ""}
        if self._is_chat:
            content = {"delta": {**role, **({} if text is None else {"content": text})}}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": None, **fields}
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._head, "choices": [choice], **usage}


def response_head(is_chat: bool, unique: str, name: str) -> dict[str, Any]:
    """Return the fields that a response and all its chunks share; `unique` becomes part of the id."""
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{unique}",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": FINGERPRINT,
        "object": "chat.completion" if is_chat else "text_completion",
    }


def response_body(
    head: dict[str, Any], texts: Sequence[str], details: Sequence[AnswerDetails], prompt_tokens: int, num_tokens: int
) -> dict[str, Any]:
    """Return a response with a choice per text, and the usage and details of all answers together."""
    choices = []
    for index, text in enumerate(texts):
        content: dict[str, Any] = {"text": text}
        if head["object"] == "chat.completion":
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choices.append({"index": index, "logprobs": None, **content, **_ending(details[index])})
    total = prompt_tokens + num_tokens
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": num_tokens, "total_tokens": total}
    return {**head, "choices": choices, "usage": usage, "lastword": combined_details(details, num_tokens).model_dump()}


def _ending(details: AnswerDetails) -> dict[str, Any]:
    """Return the finish reason and the details of a choice; a truncated answer has the reason `length`."""
    reason: protocol.FinishReason = "stop" if details.ended_by in ("model", "stop") else "length"
    return {"finish_reason": reason, "lastword": details.model_dump()}


def _quantiles(lengths: LengthDistribution, shares: Sequence[float]) -> dict[str, int]:
    return {str(share): int(lengths.quantile(share)) for share in shares}


def _prediction(lengths: LengthDistribution | None, horizon: int) -> dict[str, Any]:
    """Return the fields of AnswerDetails that are known before the first token."""
    return {
        "predicted_length": None if lengths is None else round(lengths.mean.item(), 3),
        "quantiles": None if lengths is None else _quantiles(lengths, DEFAULT_QUANTILES),
        "horizon": horizon,
    }


def answer_details(
    answer: Generation, seed: int, cap: int | None, seconds_queued: float, seconds_decoding: float
) -> AnswerDetails:
    """Return the predicted length and the cost of an answer with a cap of `cap` tokens, and how it ended."""
    return AnswerDetails.of(
        answer.finish.name.lower(),
        len(answer.tokens),
        cap,
        **_prediction(answer.lengths, answer.horizon),
        forward_passes=answer.probe_cost.forward_passes + answer.cost.forward_passes,
        tokens_computed=answer.probe_cost.tokens_computed + answer.cost.tokens_computed,
        seconds_queued=round(seconds_queued, 6),
        seconds_decoding=round(seconds_decoding, 6),
        recipe=answer.recipe.label(),
        seed=seed,
    )


def combined_details(details: Sequence[AnswerDetails], num_tokens: int) -> AnswerDetails:
    """Combine the details of several answers, which have `num_tokens` tokens in total."""
    first = details[0]
    if len(details) == 1:
        return first
    means = [answer.predicted_length for answer in details if answer.predicted_length is not None]
    passes = sum(answer.forward_passes for answer in details)
    return AnswerDetails(
        predicted_length=round(sum(means), 3) if len(means) == len(details) else None,
        quantiles=None,
        horizon=sum(answer.horizon for answer in details),
        forward_passes=passes,
        tokens_computed=sum(answer.tokens_computed for answer in details),
        tokens_per_forward=protocol.tokens_per_forward(num_tokens, passes),
        seconds_queued=max(answer.seconds_queued for answer in details),
        seconds_decoding=max(answer.seconds_decoding for answer in details),
        recipe="; ".join(dict.fromkeys(answer.recipe for answer in details)),
        seed=first.seed,
        ended_by=first.ended_by if len({answer.ended_by for answer in details}) == 1 else None,
    )


def render_canvas(frame: Frame, model: MaskPredictor) -> tuple[str, float]:
    """Return the text of a canvas, with a shade for each mask, and the share of slots without masks."""
    tokens = takewhile(lambda token: token not in model.ids.ends, frame.tokens)
    decode: Any = model.tokenizer.decode  # type: ignore[union-attr]
    runs = [(is_mask, list(run)) for is_mask, run in groupby(tokens, key=lambda token: token is None)]
    text = "".join(MASK_SHADE * len(run) if is_mask else decode(run) for is_mask, run in runs)
    filled = sum(token is not None for token in frame.tokens)
    return text, filled / max(len(frame.tokens), 1)


def _diffusion_meta(text: str, share: float) -> dict[str, Any]:
    """Return the field `diffusion_meta` of Inception's Mercury API; `share` is the share of filled slots."""
    return {"diffusion_meta": {"diffusion_content": text, "diffusion_progress": round(share, 4)}}
