"""Conversion between HTTP bodies and what the engine takes and returns."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lastword.canvas.canvas import validate_prompts
from lastword.decoding.sampling import Sampling, check_seed
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.policies.length.wrappers import combined_traits
from lastword.prompts import tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.recipe.text import from_data
from lastword.serve.protocol import (
    AnswerDetails,
    AnswerRequest,
    AssistantMessage,
    ChatChoice,
    ChatRequest,
    ChatResponse,
    ChatTurn,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    EndedBy,
    FinishReason,
    InvalidRequestError,
    LengthsRequest,
    PredictedLength,
    Usage,
    errors_of_field,
    http_failure,
)
from lastword.serve.request import (
    EventStream,
    FrameEvent,
    RequestEvent,
    RequestFinished,
    RequestPlanned,
    ServerRequest,
    TextDelta,
)
from lastword.serve.settings import ServerSettings
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Interpretation
from lastword.version import __version__
from lastword.viz.frames import Frame


def choose_recipe(request: AnswerRequest, limits: ServerSettings) -> Recipe:
    """The recipe that was asked for, its length and its sampling replaced where the request says so."""
    for name in ("recipe", "length"):
        given = getattr(request, name)
        if not limits.recipes and (isinstance(given, dict) or (given is not None and name == "length")):
            raise InvalidRequestError(f"this server takes recipes by name only; leave {name} out", name)
    with errors_of_field("recipe"):
        if request.recipe is None:
            recipe = limits.recipe or Recipe()
        elif isinstance(request.recipe, dict):
            recipe = Recipe.from_json(json.dumps(request.recipe))
        else:
            recipe = Recipe.coerce(request.recipe)
    if request.length is not None:
        with errors_of_field("length"):
            recipe = replace(recipe, length=from_data("length", request.length))
    with errors_of_field("temperature"):
        recipe = replace(recipe, sampling=_with_temperature(recipe.sampling, request.temperature))
    with errors_of_field("top_p"):
        Sampling(temperature=1.0, top_p=request.top_p)
    # 1 filters nothing, and clients send it unasked; at a temperature of 0 nothing else does.
    if request.top_p in (None, 1) or (_is_greedy(recipe.sampling) and request.temperature == 0):
        return recipe
    with errors_of_field("top_p"):
        return replace(recipe, sampling=replace(recipe.sampling, top_p=request.top_p))


def _with_temperature(own: Sampling, temperature: float | None) -> Sampling:
    """The recipe's sampling at the temperature that was asked for."""
    if temperature is None:
        return own
    if temperature == 0 and own.score == "model":  # nothing is left to filter
        return replace(own, temperature=0.0, top_p=None, top_k=None)
    return replace(own, temperature=temperature)


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 and sampling.score == "model"


def max_answer_slots(model: MaskPredictor, limits: ServerSettings) -> int:
    """Slots of a canvas that are allowed."""
    return limits.horizon or model.default_max_new_tokens


def resolve_within_limits(
    recipe: Recipe,
    request: AnswerRequest,
    prompt: tuple[int, ...],
    in_chat: bool | None,
    model: MaskPredictor,
    limits: ServerSettings,
) -> Recipe:
    """The recipe as it runs, what it left unsaid within limits; what it said is kept or refused."""
    param = "recipe" if request.length is None else "length"
    horizon, room = max_answer_slots(model, limits), model.max_seq_len - len(prompt)

    def check(asked: Recipe) -> None:
        most = combined_traits(asked.length).upper_bound
        if most > min(horizon, room):
            whose = "were asked for"
            if request.recipe is None and request.length is None:
                whose = "are what this server's own recipe asks for"
            raise InvalidRequestError(
                f"{most} slots {whose}; this server gives at most {horizon}, and the prompt leaves "
                f"{room} of the model's positions",
                param,
                "context_length_exceeded" if most > room else None,
            )

    check(recipe)
    with errors_of_field(param):
        resolved = resolve(recipe, model, [prompt], in_chat=[in_chat], available_slots=horizon)
    check(resolved)
    return resolved


SEED_RANGE = 2**53  # those that every client's JSON can hold


class LengthsQuery(NamedTuple):
    """What /v1/lengths asks the engine."""

    prompt: tuple[int, ...]
    limit: int
    ends: str
    reading: Interpretation


def to_server_requests(
    request: ChatRequest | CompletionRequest, model: MaskPredictor, limits: ServerSettings
) -> list[ServerRequest]:
    """A job for every answer: those to the first prompt first. Prompts, n and recipe are within limits."""
    _check_combinations(request, limits)
    given: Any
    in_chat: bool | None
    if isinstance(request, ChatRequest):
        given, field = _conversation(request.messages, model), "messages"
        in_chat, count = True, 1
    else:
        given, field = request.prompt, "prompt"
        is_text = isinstance(given, str) or isinstance(given[0], str)
        in_chat, count = (False if is_text else None), _count_prompts(given)
    each = request.n or 1
    if count * each > limits.answers:
        raise InvalidRequestError(
            f"{count * each} answers were asked for ({count} prompts, n {each}); at most {limits.answers} "
            "are given to one request",
            "n" if each > 1 else field,
        )
    recipe = choose_recipe(request, limits)
    prompts = _tokenize(given, field, model, limits)
    resolved = [resolve_within_limits(recipe, request, prompt, in_chat, model, limits) for prompt in prompts]
    stop = request.stop or ()
    first = ServerRequest(
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
        seed = secrets.randbelow(SEED_RANGE) if recipe.sampling.temperature else 0
    with errors_of_field("seed"):
        seeds = [check_seed("request", seed + choice) for choice in range(count * each)]
    return [
        replace(first, prompt=prompts[at // each], recipe=resolved[at // each], seed=seeds[at])
        for at in range(count * each)
    ]


def to_lengths_query(request: LengthsRequest, model: MaskPredictor, limits: ServerSettings) -> LengthsQuery:
    """What to read, of what prompt."""
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequestError(
            "give either prompt or messages", "prompt" if request.prompt is None else "messages"
        )
    given: Any
    if request.messages is None:
        given, field = request.prompt, "prompt"
    else:
        given, field = _conversation(request.messages, model), "messages"
    (prompt,) = _tokenize(given, field, model, limits)
    most = min(max_answer_slots(model, limits), model.max_seq_len - len(prompt))
    if request.limit is not None and request.limit > most:
        raise InvalidRequestError(
            f"a limit of {request.limit} was asked for; behind this prompt it is at most {most}",
            "limit",
        )
    with errors_of_field("reading"):
        reading = Auto() if request.reading is None else from_data("interpretation", request.reading)
    return LengthsQuery(prompt, request.limit or most, request.ends or "document", reading)


def _check_combinations(request: ChatRequest | CompletionRequest, limits: ServerSettings) -> None:
    """Refuse fields that contradict one another."""
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    if None not in (newer, request.max_tokens) and newer != request.max_tokens:
        raise InvalidRequestError(
            f"max_tokens {request.max_tokens} and max_completion_tokens {newer} were given, two names of one "
            "cap: give one of them",
            "max_completion_tokens",
        )
    if not request.stream and request.stream_options and request.stream_options.include_usage:
        raise InvalidRequestError("stream_options were given without stream: true", "stream_options")
    if not request.stream and request.diffusing:
        raise InvalidRequestError("diffusing is a way to stream: give stream: true as well", "diffusing")
    if request.timeout is not None and request.timeout > limits.seconds:
        raise InvalidRequestError(
            f"a timeout of {request.timeout:g} seconds was given; at most {limits.seconds:g} are",
            "timeout",
        )


def _conversation(messages: list[ChatTurn], model: MaskPredictor) -> list[dict[str, str]]:
    """The messages as the model's template takes them."""
    template = None if model.tokenizer is None else model.tokenizer.chat_template
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template, so it cannot tell who says what: ask /v1/completions with a "
            "prompt",
            "messages",
            "no_chat_template",
        )
    # What the API calls a developer is a system message to models that know no developers.
    system = {} if "developer" in template else {"developer": "system"}
    return [{"role": system.get(m.role, m.role), "content": m.text} for m in messages]


def _count_prompts(prompt: object) -> int:
    is_list = isinstance(prompt, list) and isinstance(prompt[0], (str, list))
    return len(prompt) if is_list else 1  # type: ignore[arg-type]


def _tokenize(given: Any, field: str, model: MaskPredictor, limits: ServerSettings) -> list[tuple[int, ...]]:
    """Every prompt as ids of the model, none too long."""
    with errors_of_field(field):
        batch = tokenize_prompts(model, given)
        validate_prompts(batch, model.ids)
    most = min(limits.prompt or model.max_seq_len, model.max_seq_len - 1)
    for number, prompt in enumerate(batch):
        if len(prompt) > most:
            raise InvalidRequestError(
                f"prompt {number} has {len(prompt)} tokens; at most {most} are read",
                field,
                "context_length_exceeded",
            )
    return [tuple(prompt) for prompt in batch]


QUANTILES = (0.5, 0.9)
MASK_SHADE = "\N{LIGHT SHADE}"  # what stands for a mask in a text that is still being written
FINGERPRINT = f"lastword-{__version__}"


class ResponseBuilder:
    """The reply to one request, whole or in chunks; `jobs` are its answers, in order."""

    def __init__(self, jobs: Sequence[ServerRequest], name: str, *, chat: bool) -> None:
        self.jobs, self.chat = jobs, chat
        self.head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": FINGERPRINT,
        }

    def reply(self, answers: Sequence[RequestFinished]) -> ChatResponse | CompletionResponse:
        """All answers at once."""
        ledgers = self.ledgers(answers)
        common: dict[str, Any] = {
            **self.head,
            "usage": self.usage(answers),
            "lastword": combined_details(ledgers, sum(answer.tokens for answer in answers)),
        }
        each = list(enumerate(zip(answers, ledgers)))
        if self.chat:
            return ChatResponse(
                **common,
                choices=[
                    ChatChoice(
                        index=index,
                        message=AssistantMessage(content=answer.text),
                        finish_reason=finish_reason(answer),
                        lastword=answer_details,
                    )
                    for index, (answer, answer_details) in each
                ],
            )
        return CompletionResponse(
            **common,
            choices=[
                CompletionChoice(
                    index=index,
                    text=answer.text,
                    finish_reason=finish_reason(answer),
                    lastword=answer_details,
                )
                for index, (answer, answer_details) in each
            ],
        )

    def usage(self, answers: Sequence[RequestFinished]) -> Usage:
        """Real tokens. Jobs that share a prompt are neighbours, and it counts once."""
        prompts = [job.prompt for job in self.jobs]
        read = sum(len(p) for at, p in enumerate(prompts) if not at or p is not prompts[at - 1])
        written = sum(answer.tokens for answer in answers)
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def ledgers(self, answers: Sequence[RequestFinished]) -> list[AnswerDetails]:
        """What each answer took."""
        return [answer_details(job, answer) for job, answer in zip(self.jobs, answers)]


def finish_reason(answer: RequestFinished) -> FinishReason:
    """As the API has it: a text that was cut never says `stop`."""
    return "length" if answer.cut else "stop"


def ended_by(job: ServerRequest, answer: RequestFinished) -> EndedBy:
    """The model, a stop string, the cap of the request, or a canvas that was full."""
    if answer.stopped is not None:
        return "stop"
    if not answer.cut:
        return "model"
    return "cap" if job.most is not None and answer.tokens >= job.most else "canvas"


def predicted_length(lengths: LengthDistribution | None, horizon: int) -> PredictedLength:
    """What the probe said."""
    if lengths is None:
        return PredictedLength(predicted_length=None, quantiles=None, horizon=horizon)
    return PredictedLength(
        predicted_length=round(lengths.mean.item(), 3),
        quantiles={str(q): int(lengths.quantile(q)) for q in QUANTILES},
        horizon=horizon,
    )


def answer_details(job: ServerRequest, answer: RequestFinished) -> AnswerDetails:
    """What an answer was predicted to be, and what it took."""
    made = answer.generation
    passes = made.probe_cost.forward_passes + made.cost.forward_passes
    return AnswerDetails(
        **predicted_length(made.lengths, made.horizon).model_dump(),
        forward_passes=passes,
        tokens_computed=made.probe_cost.tokens_computed + made.cost.tokens_computed,
        tokens_per_forward=tokens_per_forward(answer.tokens, passes),
        seconds_queued=round(answer.queued, 6),
        seconds_decoding=round(answer.decoding, 6),
        recipe=made.recipe.label(),
        seed=job.seed,
        ended_by=ended_by(job, answer),
    )


def combined_details(ledgers: Sequence[AnswerDetails], tokens: int) -> AnswerDetails:
    """Several answers of so many tokens as one: sums, the longest seconds, and None where they differ."""
    first = ledgers[0]
    if len(ledgers) == 1:
        return first
    means = [own.predicted_length for own in ledgers if own.predicted_length is not None]
    passes = sum(own.forward_passes for own in ledgers)
    ends = {own.ended_by for own in ledgers}
    return AnswerDetails(
        predicted_length=round(sum(means), 3) if len(means) == len(ledgers) else None,
        quantiles=None,
        horizon=sum(own.horizon for own in ledgers),
        forward_passes=passes,
        tokens_computed=sum(own.tokens_computed for own in ledgers),
        tokens_per_forward=tokens_per_forward(tokens, passes),
        seconds_queued=max(own.seconds_queued for own in ledgers),
        seconds_decoding=max(own.seconds_decoding for own in ledgers),
        recipe="; ".join(dict.fromkeys(own.recipe for own in ledgers)),
        seed=first.seed,
        ended_by=first.ended_by if len(ends) == 1 else None,
    )


def render_canvas(frame: Frame, tokenizer: TextTokenizer, ends: Sequence[int]) -> tuple[str, float]:
    """The text of a canvas that is being written, a shade for each mask, and the share of slots written."""
    pieces, run = list[str](), list[int]()
    for token in frame.tokens:
        if token in ends:
            break
        if token is None:
            pieces += [tokenizer.decode(run), MASK_SHADE]
            run = []
        else:
            run.append(token)
    written = sum(token is not None for token in frame.tokens)
    return "".join([*pieces, tokenizer.decode(run)]), written / max(len(frame.tokens), 1)


def tokens_per_forward(tokens: int, passes: int) -> float:
    """Tokens a pass; 0 where there was none."""
    return round(tokens / passes, 4) if passes else 0.0


IndexedEvents = AsyncGenerator[tuple[int, RequestEvent], None]


async def merge_events(streams: Sequence[EventStream]) -> IndexedEvents:
    """Events with the number of their job, until all have answered or one fails, which cancels the others.

    One event waits at most: what is not taken yet stays in its stream, which keeps it small.
    """
    heard: asyncio.Queue[tuple[int, RequestEvent | Exception]] = asyncio.Queue(1)

    async def listen(number: int, stream: EventStream) -> None:
        try:
            async for event in stream:
                await heard.put((number, event))
        except Exception as error:
            await heard.put((number, error))

    listeners = [asyncio.create_task(listen(*pair)) for pair in enumerate(streams)]
    waiting = set(range(len(streams)))
    try:
        while waiting:
            number, event = await heard.get()
            if isinstance(event, Exception):
                waiting.discard(number)
                raise event
            if isinstance(event, RequestFinished):
                waiting.discard(number)
            yield number, event
    finally:
        for listener in listeners:
            listener.cancel()
        for number in waiting:
            streams[number].cancel()


log = logging.getLogger(__name__)

DONE_EVENT = b"data: [DONE]\n\n"


class ChunkBuilder:
    """The events of one reply, each a chunk of the API's.

    A choice begins with its role and what is predicted of it, and ends with its finish reason and ledger.
    With `diffusing`, every chunk's text is the whole answer as it stands, and replaces the last one.
    """

    def __init__(self, answered: ResponseBuilder, asking: AnswerRequest, model: MaskPredictor) -> None:
        self._answered, self._model = answered, model
        self._diffusing = bool(asking.diffusing)
        options = asking.stream_options
        self._usage = options is not None and bool(options.include_usage)
        self._object = "chat.completion.chunk" if answered.chat else "text_completion"

    async def events(
        self, first: tuple[int, RequestEvent], heard: IndexedEvents
    ) -> AsyncGenerator[bytes, None]:
        """Bytes to send; what fails now is an event as well, and the last one: no `[DONE]` follows it."""
        answers: dict[int, RequestFinished] = {}
        try:
            yield _server_sent(self._chunk(*first))
            async for index, event in heard:
                if isinstance(event, RequestFinished):
                    answers[index] = event
                if chunk := self._chunk(index, event):
                    yield _server_sent(chunk)
        except Exception as error:
            if http_failure(error).status == 500:
                log.exception("a stream failed")
            yield _server_sent(http_failure(error).reply.model_dump())
            return
        if self._usage:
            ordered = [answers[index] for index in range(len(answers))]
            ledgers = self._answered.ledgers(ordered)
            yield _server_sent(
                {
                    **self._head,
                    "choices": [],
                    "usage": self._answered.usage(ordered).model_dump(),
                    "lastword": combined_details(
                        ledgers, sum(answer.tokens for answer in ordered)
                    ).model_dump(),
                }
            )
        yield DONE_EVENT

    @property
    def _head(self) -> dict[str, Any]:
        return {**self._answered.head, "object": self._object}

    def _chunk(self, index: int, event: RequestEvent) -> dict[str, Any]:
        """Empty: the event is none that this stream shows."""
        if isinstance(event, RequestPlanned):
            known = predicted_length(event.lengths, event.horizon).model_dump()
            return self._choice(index, "", first=True, lastword=known)
        if isinstance(event, FrameEvent):
            return self._snapshot(index, event.frame) if self._diffusing else {}
        if isinstance(event, TextDelta):
            return {} if self._diffusing else self._choice(index, event.text)
        job = self._answered.jobs[index]
        return self._choice(
            index,
            event.text if self._diffusing else None,
            finish_reason=finish_reason(event),
            lastword=answer_details(job, event).model_dump(),
        ) | (_diffusion_meta(event.text, 1.0) if self._diffusing else {})

    def _snapshot(self, index: int, frame: Frame) -> dict[str, Any]:
        text, share = render_canvas(frame, self._model.tokenizer, self._model.ids.ends)  # type: ignore[arg-type]
        shown = {
            "forward_passes": frame.forward_passes,
            "texts": [None if token is None else text for token, text in zip(frame.tokens, frame.texts)],
            "filled_at": list(frame.filled_at),
            "confidence": list(frame.confidence),
            "tokens_computed": frame.tokens_computed,
            "end": frame.end,
        }
        return self._choice(index, text, lastword={"frame": shown}) | _diffusion_meta(text, share)

    def _choice(self, index: int, text: str | None, *, first: bool = False, **more: Any) -> dict[str, Any]:
        """A chunk of one choice; text None adds none."""
        said: dict[str, Any] = {"text": text or ""}
        if self._answered.chat:
            said = {"delta": {} if text is None else {"content": text}}
            if first:
                said["delta"] = {"role": "assistant", **said["delta"]}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": None, **more}
        return {**self._head, "choices": [choice]} | ({"usage": None} if self._usage else {})


def _diffusion_meta(text: str, share: float) -> dict[str, Any]:
    """Mercury's fields."""
    return {"diffusion_meta": {"diffusion_content": text, "diffusion_progress": round(share, 4)}}


def _server_sent(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n\n"
