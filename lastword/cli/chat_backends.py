"""The backends of `lastword chat`: a model in this process, or a server with the OpenAI API."""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import lastword
from lastword.cli.options import ChatOptions, read_recipe
from lastword.errors import CapacityError, EngineError, SettingError, import_extra
from lastword.validation import check_url

CONNECT_TIMEOUT = 10.0  # seconds
TIMEOUT = 3600.0  # seconds between two chunks of an answer: a queue may be long

Message = dict[str, str]  # with the keys role and content


class ServerCanvas(BaseModel):
    """The canvas after a forward pass, as a server reports it; one entry per slot, None for a mask."""

    texts: list[str | None]
    filled_at: list[int | None]  # the forward pass that filled the slot
    forward_passes: int
    end: int | None  # the slot of the first end token


@dataclass(frozen=True)
class AnswerUpdate:
    """An answer so far: its committed text, and its canvas if that is drawn; only the last update has the cost."""

    text: str
    canvas: lastword.Frame | ServerCanvas | None = None
    tokens: int | None = None  # of the finished answer, if the server reports them
    cost: dict[str, Any] | None = None  # the field `lastword` of a server's answer


class LocalBackend:
    """A model in this process; without a chat template, only the last message is its prompt."""

    def __init__(
        self, model: lastword.MaskPredictor, name: str, recipe: lastword.Recipe, chat_options: ChatOptions
    ) -> None:
        if model.tokenizer is None:
            raise SettingError(f"{name} has no tokenizer for a chat; put its tokenizer files next to the weights")
        self.name, self.has_chat_template = name, model.tokenizer.chat_template is not None
        self._model, self._recipe, self._options = model, recipe, chat_options
        self._tokenizer = model.tokenizer
        self._last: lastword.Generation | None = None

    def answer(self, messages: Sequence[Message], *, draw: bool) -> Generator[AnswerUpdate, None, None]:
        """Yield updates of an answer while it is decoded, with its canvas whether or not it is drawn."""
        from lastword.api import build_generation
        from lastword.decoding.detokenizer import IncrementalDetokenizer
        from lastword.decoding.loop import decode
        from lastword.models.base import decode_text
        from lastword.prompts import prompts_in_chat, tokenize_prompts
        from lastword.serve.serving import answer_details
        from lastword.viz.frames import BatchTrace

        model, limit, seed = self._model, self._options.max_new_tokens, self._options.seed
        if seed is None:
            seed = secrets.randbelow(2**32) if self._recipe.sampling.temperature else 0
        traces, frames = BatchTrace(model.tokenizer, model.ids), list[lastword.Frame]()
        prompt: Any = list(messages) if self.has_chat_template else messages[-1]["content"]
        (ids,) = tokenize_prompts(model, prompt)
        detokenizer = IncrementalDetokenizer(self._tokenizer, model.ids, self._options.stop or ())
        steps = decode(
            model,
            [ids],
            self._recipe,
            max_new_tokens=limit,
            stop=self._options.stop,
            seed=seed,
            in_chat=prompts_in_chat(prompt),
        )
        for step in steps:
            for _, frame in traces.of(step):
                frames.append(frame)
                detokenizer.update(step.canvas.answer_ids(0))
                yield AnswerUpdate(detokenizer.text, frame)
        (row,) = step.finished
        answer = build_generation(model, row, step.recipe, ids)
        prompt_text = decode_text(model.tokenizer, ids)
        self._last = replace(answer, frames=tuple(frames), prompt_text=prompt_text)
        cost = answer_details(answer, seed, limit, 0.0, answer.seconds).model_dump()
        yield AnswerUpdate(answer.text or "", frames[-1], len(answer.tokens), cost)

    def replay(self, path: Path) -> Path:
        """Write an HTML page that replays the last answer, and return its path."""
        if self._last is None:
            raise SettingError("there is no answer to replay yet; write a message first")
        return self._last.replay(path)


class ServerBackend:
    """A server with the OpenAI API; redirects are not followed, and proxies are not used."""

    def __init__(
        self, url: str, key: str | None, name: str | None, chat_options: ChatOptions, timeout: float | None = None
    ) -> None:
        check_url("--base-url", url)
        self._url = url
        self._fields = {field: value for field, value in vars(chat_options).items() if value is not None}
        if "max_new_tokens" in self._fields:  # OpenAI has another name
            self._fields["max_tokens"] = self._fields.pop("max_new_tokens")
        recipe = chat_options.recipe
        if recipe is not None and not recipe.isidentifier():  # a file, whose content is sent
            self._fields["recipe"] = json.loads(read_recipe(recipe).to_json())
        if key and not (key.isascii() and key.isprintable()):
            raise SettingError("the API key has characters that a header cannot contain; give it in ASCII")
        openai = import_extra("openai", "client", "--base-url")
        with _server_errors(url):
            self._client = openai.OpenAI(
                base_url=url.rstrip("/").removesuffix("/v1") + "/v1",
                api_key=key or "none",  # the client requires one, and a server without keys ignores it
                max_retries=0,
                # The client would fill these headers from environment variables that are meant for OpenAI only.
                default_headers={name: openai.Omit() for name in ("OpenAI-Organization", "OpenAI-Project")},
                timeout=openai.Timeout(timeout or TIMEOUT, connect=CONNECT_TIMEOUT),
                http_client=openai.DefaultHttpxClient(follow_redirects=False, trust_env=False),
            )
            models: Any = self._client.get("/models", cast_to=object)
        try:
            entries = {str(entry["id"]): entry for entry in models["data"]}
            self.name = name or next(iter(entries))
        except (TypeError, LookupError, StopIteration) as error:
            raise EngineError(f"{url} lists no model; is it a server with the OpenAI API?") from error
        if self.name not in entries:
            raise SettingError(f"{url} has no model {self.name!r:.80}; give one that it has: {', '.join(entries)}")
        self.has_chat_template = bool((entries[self.name].get("lastword") or {}).get("chat", True))

    def answer(self, messages: Sequence[Message], *, draw: bool) -> Generator[AnswerUpdate, None, None]:
        """Yield updates of an answer while it is decoded, with its canvas if `draw`."""
        import openai

        body: dict[str, Any] = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= self._fields | ({"diffusing": True} if draw else {})
        path = "/chat/completions" if self.has_chat_template else "/completions"
        body |= {"messages": list(messages)} if self.has_chat_template else {"prompt": messages[-1]["content"]}
        update, is_finished = AnswerUpdate(""), False
        with (
            _server_errors(self._url),
            self._client.post(path, body=body, cast_to=object, stream=True, stream_cls=openai.Stream[Any]) as stream,
        ):
            for chunk in stream:
                usage = chunk.get("usage") or {}
                update = replace(update, tokens=usage.get("completion_tokens", update.tokens))
                for choice in chunk.get("choices") or ():
                    text = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                    update = replace(update, text=text if draw else update.text + text)  # a frame has the whole text
                    details = choice.get("lastword") or {}
                    if draw and "frame" in details:
                        update = replace(update, canvas=ServerCanvas.model_validate(details["frame"]))
                    if "forward_passes" in details:  # only in the last chunk
                        update = replace(update, cost=details)
                    is_finished = is_finished or choice.get("finish_reason") is not None
                    yield update
        if not is_finished:
            raise EngineError(f"{self._url} did not send a complete answer; try again")
        yield update

    def replay(self, path: Path) -> Path:
        """Raise SettingError: the server does not send what a replay needs."""
        raise SettingError("a replay needs the model in this process; chat without --base-url or use the server's page")


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    """Convert exceptions of the OpenAI client into EngineError or CapacityError, with the server's message."""
    import openai

    try:
        yield
    except openai.APIConnectionError as error:
        reason = f"could not be reached ({error.__cause__ or error}); is the server running?"
        raise EngineError(f"{url} {reason} Its address is such as http://127.0.0.1:8000") from error
    except openai.APIError as error:
        fields = error.body if isinstance(error.body, dict) else {}
        message = " ".join(str(fields.get("message") or "no reason given").split())
        status = wait = ""
        if isinstance(error, openai.APIStatusError):
            status, after = f" ({error.status_code})", error.response.headers.get("retry-after")
            wait = f"; try again in {after} seconds" if after else ""
        kind = CapacityError if fields.get("code") == "context_length_exceeded" else EngineError
        raise kind(f"the server{status}: {message}{wait}") from error
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "json", "pydantic")):
            raise
        raise EngineError(f"{url} did not send a complete answer ({error}); try again") from error
