"""The backends of `lastword chat`: a model in this process, or a server with the OpenAI API."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from lastword.errors import CapacityError, LastwordError, RecipeError, SettingError, install_command
from lastword.io.files import os_error_reason, user_path

if TYPE_CHECKING:
    from lastword.api import Generation
    from lastword.models.base import MaskPredictor
    from lastword.recipe.recipe import Recipe

CONNECT_SECONDS = 10.0
READ_SECONDS = 3600.0  # between two chunks of an answer: a queue may be long

Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class ChatOptions:
    """Options of all answers of a conversation; None leaves a choice to the recipe or to the server."""

    recipe: str | None = None  # a name or a JSON file
    length: str | None = None
    temperature: float | None = None
    seed: int | None = None  # None: a new seed for every answer, if anything is sampled
    max_tokens: int | None = None


class CanvasUpdate(BaseModel):
    """The canvas after a forward pass, one entry per slot: None for a mask."""

    texts: list[str | None]
    filled_at: list[int | None]  # the forward pass that filled the slot
    forward_passes: int
    end: int | None  # the slot of the first end token


class AnswerCost(BaseModel, extra="allow"):
    """The predicted length and the costs of an answer, as the server reports them."""

    predicted_length: float | None = None
    forward_passes: int
    tokens_computed: int
    tokens_per_forward: float
    seconds_decoding: float
    seconds_queued: float = 0.0
    ended_by: str | None = None


@dataclass(frozen=True)
class NewText:
    """Text that is final and follows the text of earlier events."""

    text: str


@dataclass(frozen=True)
class FinishedAnswer:
    """The complete answer; its number of tokens and its cost are None if the server does not report them."""

    text: str
    tokens: int | None = None
    cost: AnswerCost | None = None


ChatEvent = CanvasUpdate | NewText | FinishedAnswer


class ChatServerError(LastwordError):
    """The error of a server that cannot be reached or refuses a request; `code` is the server's."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ChatBackend(Protocol):
    """A source of answers."""

    name: str
    has_chat_template: bool  # without one, only the last message is sent, as a plain prompt

    def answer(self, messages: Sequence[Message], *, frames: bool) -> Iterator[ChatEvent]:
        """Yield the events of an answer, a FinishedAnswer last; `frames` requests canvas updates."""
        ...

    def replay(self, path: Path) -> Path:
        """Write the last answer as a page that plays it."""
        ...


class LocalBackend:
    """A model in this process."""

    def __init__(self, model: MaskPredictor, name: str, recipe: Recipe, options: ChatOptions) -> None:
        if model.tokenizer is None:
            raise SettingError(
                f"{name} has no tokenizer, which a chat needs; put its tokenizer files next to the weights"
            )
        self.name = name
        self._model, self._tokenizer, self._options = model, model.tokenizer, options
        self._recipe = recipe.with_choices(length=options.length)
        if options.temperature is not None:
            sampling = replace(self._recipe.sampling, temperature=options.temperature)
            self._recipe = replace(self._recipe, sampling=sampling)
        self.has_chat_template = self._tokenizer.chat_template is not None
        self._last: Generation | None = None

    def answer(self, messages: Sequence[Message], *, frames: bool) -> Iterator[ChatEvent]:
        from lastword.api import build_generation
        from lastword.decoding.loop import decode
        from lastword.decoding.sampling import RowGenerators
        from lastword.models.base import decode_text
        from lastword.prompts import prompts_in_chat, tokenize_prompts
        from lastword.serve.detokenizer import IncrementalDetokenizer
        from lastword.serve.request import RequestFinished, ServerRequest
        from lastword.serve.serving import answer_details
        from lastword.viz.frames import BatchTrace

        model, started = self._model, time.perf_counter()
        text: Any = list(messages) if self.has_chat_template else messages[-1]["content"]
        (prompt,) = tokenize_prompts(model, text)
        if len(prompt) >= model.max_seq_len:
            raise CapacityError(
                f"the conversation has {len(prompt)} tokens, and {self.name} has {model.max_seq_len} "
                "positions for it and the answer; write less"
            )
        seed, limit, trace = self._seed(), self._options.max_tokens, []
        traces = BatchTrace(self._tokenizer, model.ids)
        detokenizer = IncrementalDetokenizer(self._tokenizer, model.ids)
        steps = decode(
            model,
            [prompt],
            self._recipe,
            generators=RowGenerators([seed], model.device),
            in_chat=prompts_in_chat(text),
            max_new_tokens=None if limit is None else [limit],
        )
        for step in steps:
            for _, frame in traces.of(step):
                trace.append(frame)
                texts = [None if token is None else piece for token, piece in zip(frame.tokens, frame.texts)]
                yield CanvasUpdate(
                    texts=texts,
                    filled_at=list(frame.filled_at),
                    forward_passes=frame.forward_passes,
                    end=frame.end,
                )
            if new := detokenizer.update(step.canvas.answer_ids(0), finished=bool(step.finished)):
                yield NewText(new)
            for row in step.finished:
                seconds = time.perf_counter() - started
                generation = build_generation(model, row, step.recipe, prompt, seconds)
                self._last = replace(
                    generation, frames=tuple(trace), prompt_text=decode_text(self._tokenizer, prompt)
                )
                cut = generation.finish.name != "ENDED"
                text, count = detokenizer.text, detokenizer.num_tokens
                result = RequestFinished(generation, text, count, cut, None, 0.0, seconds)
                request = ServerRequest(tuple(prompt), step.recipe, seed, limit)
                cost = AnswerCost.model_validate(answer_details(request, result).model_dump())
                yield FinishedAnswer(text, count, cost)

    def replay(self, path: Path) -> Path:
        if self._last is None:
            raise SettingError("there is no answer to replay yet; write a message first")
        return self._last.replay(path)

    def _seed(self) -> int:
        if self._options.seed is not None:
            return self._options.seed
        return secrets.randbelow(2**32) if self._recipe.sampling.temperature else 0


class ServerBackend:
    """A server with the OpenAI API, reached without redirects and proxies."""

    def __init__(self, url: str, key: str | None, name: str | None, options: ChatOptions) -> None:
        self.url = url
        fields = {
            "recipe": _recipe_field(options.recipe),
            "length": options.length,
            "temperature": options.temperature,
            "seed": options.seed,
            "max_tokens": options.max_tokens,
        }
        self._fields = {field: value for field, value in fields.items() if value is not None}
        self._client = _client(url, key)
        with _server_errors(url):
            listed: Any = self._client.get("/models", cast_to=object)
        try:
            models = {str(entry["id"]): entry for entry in listed["data"]}
            self.name = name or next(iter(models))
        except (TypeError, LookupError, StopIteration) as error:
            raise ChatServerError(f"{url} lists no model; is it a server with the OpenAI API?") from error
        if self.name not in models:
            raise SettingError(
                f"there is no model {self.name!r:.80} at {url}; give one that it has: {', '.join(models)}"
            )
        self.has_chat_template = bool((models[self.name].get("lastword") or {}).get("chat", True))

    def answer(self, messages: Sequence[Message], *, frames: bool) -> Iterator[ChatEvent]:
        import openai

        body: dict[str, Any] = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= self._fields | ({"diffusing": True} if frames else {})
        body |= (
            {"messages": list(messages)} if self.has_chat_template else {"prompt": messages[-1]["content"]}
        )
        path = "/chat/completions" if self.has_chat_template else "/completions"
        text, cost, finished = "", None, False
        tokens: int | None = None
        with (
            _server_errors(self.url),
            self._client.post(
                path, body=body, cast_to=object, stream=True, stream_cls=openai.Stream[Any]
            ) as stream,
        ):
            for chunk in stream:
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                for choice in chunk.get("choices") or ():
                    new = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                    extra = choice.get("lastword") or {}
                    text = new if frames else text + new  # a canvas replaces the one before
                    if frames and "frame" in extra:
                        yield CanvasUpdate.model_validate(extra["frame"])
                    elif new and not frames:
                        yield NewText(new)
                    cost = _cost(extra) or cost
                    finished = finished or choice.get("finish_reason") is not None
        if not finished:
            raise ChatServerError(f"{self.url} closed the connection before the end of the answer; try again")
        yield FinishedAnswer(text, tokens, cost)

    def replay(self, path: Path) -> Path:
        raise SettingError(
            "a replay needs the model in this process; chat without --url, or use the server's page"
        )


def _client(url: str, key: str | None) -> Any:
    """Return a client of the server at `url`, whose address may end with /v1."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise SettingError(
            f"--url {url!r:.200} is not the address of a server; give one such as http://127.0.0.1:8000"
        )
    if key and not (key.isascii() and key.isprintable()):
        raise SettingError("the API key has characters that a header cannot contain; give it in ASCII")
    try:
        import openai
    except ImportError as error:
        raise SettingError(
            f"--url needs the package openai, which is missing: {install_command('client')}"
        ) from error
    return openai.OpenAI(
        base_url=url.rstrip("/").removesuffix("/v1") + "/v1",
        api_key=key or "none",  # the client demands one, and a server without keys ignores it
        max_retries=0,
        timeout=openai.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        http_client=openai.DefaultHttpxClient(follow_redirects=False, trust_env=False),
    )


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    """Turn errors of the client into ChatServerError with the server's message."""
    import openai

    try:
        yield
    except openai.APIConnectionError as error:
        reason = error.__cause__ or error
        raise ChatServerError(f"{url} could not be reached ({reason}); is the server running?") from error
    except openai.APIError as error:
        fields = error.body if isinstance(error.body, dict) else {}
        message = " ".join(str(fields.get("message") or "it gave no reason").split())
        status = wait = ""
        if isinstance(error, openai.APIStatusError):
            status, after = f" ({error.status_code})", error.response.headers.get("retry-after")
            wait = f"; try again in {after} seconds" if after else ""
        code = fields.get("code")
        raise ChatServerError(
            f"the server{status}: {message}{wait}", code if isinstance(code, str) else None
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "json")):  # the transport and malformed events
            raise
        raise ChatServerError(
            f"{url} closed the connection before the end of the answer ({error}); try again"
        ) from error


def _cost(extra: dict[str, Any]) -> AnswerCost | None:
    """Return the cost, which only the last chunk of an answer contains."""
    try:
        return AnswerCost.model_validate(extra)
    except ValidationError:
        return None


def _recipe_field(recipe: str | None) -> Any:
    """Return a recipe for a request: a name unchanged, a file as its content."""
    if recipe is None or recipe.isidentifier():
        return recipe
    try:
        return json.loads(user_path(recipe).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = os_error_reason(error)
        raise RecipeError(f"the recipe file {recipe!r:.200} cannot be read ({reason})") from error
