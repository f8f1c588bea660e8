"""The engine for servers with the OpenAI API, such as lastword's, vLLM's or SGLang's.

A lastword server receives the whole recipe and reports costs. Other servers receive only the temperature and,
as `max_tokens`, the slots of a fixed canvas; their records contain no forward passes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import cached_property
from itertools import islice
from threading import Thread
from typing import Any, TypeVar

from lastword.engines.base import (
    GenerationReply,
    GenerationRequest,
    Key,
    Lengths,
    RemoteModelInfo,
    Replies,
    Requests,
    empty_details,
    request_pairs,
)
from lastword.engines.workers import MAX_WORKERS
from lastword.errors import EngineError, SettingError, import_extra
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS, check_int, check_number, check_url
from lastword.version import __version__

API_KEY = "LASTWORD_API_KEY"  # the only environment variable whose value is sent to the server
MAX_RETRIES = 8  # per request, if the server is busy or cannot be reached
TIMEOUT, CONNECT_TIMEOUT = 3600.0, 10.0  # seconds
TOO_LONG_CODE = "context_length_exceeded"
MALFORMED = (LookupError, TypeError, ValueError)  # errors raised when a response has an unexpected format
Value = TypeVar("Value")


class OpenAIEngine:
    """Sends requests to a server with the OpenAI API, up to `requests` at once (by default `max_batch_size`).

    If the server rejects a request, or does not answer it within `timeout` seconds (by default 3600), only that
    request fails. If the server cannot be reached, or rejects the API key, the run stops.
    """

    def __init__(self, base_url: str, name: str, *, requests: int | None = None, timeout: float | None = None) -> None:
        if requests is not None:
            check_int("OpenAIEngine", "requests", requests, minimum=1, maximum=MAX_WORKERS)
        if timeout is not None:
            check_number("OpenAIEngine", "timeout", timeout, above=0)
        check_url("--base-url", base_url)
        self.base_url, self.name, self.requests = base_url.rstrip("/"), name, requests
        self.timeout = timeout or TIMEOUT
        self._openai = openai = import_extra("openai", "client", "--engine openai")
        # The client would take these headers from environment variables that are meant for OpenAI only.
        no_headers: Any = {name: openai.Omit() for name in ("OpenAI-Organization", "OpenAI-Project")}
        self._client = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=os.environ.get(API_KEY) or "none",  # the client requires a key
            max_retries=MAX_RETRIES,
            timeout=openai.Timeout(None, connect=CONNECT_TIMEOUT),
            default_headers=no_headers,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="lastword client", daemon=True)
        self._thread.start()

    def __enter__(self) -> OpenAIEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the client's thread."""
        if self._thread.is_alive():
            self._submit(self._client.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @cached_property
    def model_info(self) -> RemoteModelInfo:
        """The properties of the model, as the server reports them on the first access."""
        return self._submit(self._find_model()).result()

    def generate(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Replies[Key]:
        """Yield replies in the order in which they arrive."""
        unsent = request_pairs(requests)
        pending: set[Future[GenerationReply[Key]]] = set()
        try:
            while True:
                for key, request in islice(unsent, (self.requests or max_batch_size) - len(pending)):
                    chosen = request.recipe or recipe
                    if not self.model_info.is_lastword and not isinstance(chosen.length, Fixed):
                        raise SettingError(
                            f"{self.base_url} is not a lastword server, so it cannot use the recipe {chosen.label()}; "
                            "give --length fixed:N, which limits its answers to N tokens"
                        )
                    pending.add(self._submit(self._reply(key, request, chosen)))
                if not pending:
                    return
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield [future.result() for future in done]
        finally:
            for future in pending:
                future.cancel()

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield nothing: a server reports the predicted length with the answer."""
        yield from ()

    def _submit(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _find_model(self) -> RemoteModelInfo:
        client = self._client.with_options(max_retries=2, timeout=CONNECT_TIMEOUT)
        try:
            body, _ = await self._call(client.models.with_raw_response.list)
            entries = {str(entry["id"]): entry for entry in body["data"]}
        except (self._openai.APIStatusError, *MALFORMED) as error:
            raise EngineError(
                f"{self.base_url}/models is not a list of models ({error}); a base URL usually ends with /v1"
            ) from error
        if self.name in entries:
            return RemoteModelInfo.from_entry(entries[self.name])
        names = ", ".join([*entries][:9]) or "no model"
        raise EngineError(f"{self.base_url} serves {names}, not {self.name}; give --model one of these names")

    async def _call(self, method: Callable[..., Awaitable[Any]], **body: Any) -> tuple[dict[str, Any], float]:
        """Return the JSON response to a call, and its seconds; raise EngineError if the server cannot be used."""
        try:
            response = await method(**body)
            data: dict[str, Any] = response.http_response.json()
            return data, response.elapsed.total_seconds()
        except self._openai.APIConnectionError as error:
            raise EngineError(
                f"{self.base_url} cannot be reached ({error.__cause__ or error}); check that the server runs "
                "and the URL is right, then give the same command again: finished answers are kept"
            ) from error
        except self._openai.APIStatusError as error:
            if error.status_code not in (401, 403):
                raise
            raise EngineError(f"{self.base_url} needs an API key ({error}); set the variable {API_KEY}") from error

    async def _reply(self, key: Key, request: GenerationRequest, recipe: Recipe) -> GenerationReply[Key]:
        """Send one request; return its reply, with an error if the server rejects it or its response is malformed."""
        prompt = request.prompt_text
        if isinstance(prompt, tuple) and prompt[-1]["role"] == "assistant":
            return GenerationReply(key, "", {}, "a chat server cannot continue an unfinished answer")
        resource = self._client.chat.completions if isinstance(prompt, tuple) else self._client.completions
        hardware = f"{self.model_info.hardware}, behind {self.base_url}"[:1_000]
        details = empty_details(len(request.prompt_ids)) | {"hardware": hardware, "versions": {"lastword": __version__}}
        details["seconds_share"] = None  # unknown: the server decodes other requests at the same time
        try:
            call = self._call(resource.with_raw_response.create, **self._body(request, recipe))
            body, seconds = await asyncio.wait_for(call, self.timeout)
            answered = {"seconds": round(seconds, 6), "horizon": combined_traits(recipe.length).upper_bound}
            return self._read(GenerationReply(key, "", details | answered), body, request.stop)
        except self._openai.APIStatusError as error:
            if error.code == TOO_LONG_CODE:
                return GenerationReply(key, "", details)
            reason = " ".join(str(error).split())[:500]
            return GenerationReply(key, "", {}, f"the server rejected the request: {reason}")
        except asyncio.TimeoutError:
            return GenerationReply(key, "", {}, f"the server did not answer within {self.timeout:g} s; see --timeout")
        except MALFORMED as error:
            return GenerationReply(key, "", {}, f"the server's answer is malformed ({error!r:.200})")

    def _body(self, request: GenerationRequest, recipe: Recipe) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "seed": request.seed}
        limit = request.max_new_tokens
        if request.stop:
            body["stop"] = list(request.stop)
        if isinstance(request.prompt_text, tuple):
            body["messages"] = list(request.prompt_text)
        else:
            body["prompt"] = request.prompt_ids if request.prompt_text is None else request.prompt_text
        if self.model_info.is_lastword:
            body["extra_body"] = {"recipe": json.loads(recipe.to_json())}
        else:
            body["temperature"] = recipe.sampling.temperature
            limit = min(limit or MAX_SLOTS, combined_traits(recipe.length).upper_bound)
        return body if limit is None else body | {"max_tokens": limit}

    def _read(self, reply: GenerationReply[Key], body: dict[str, Any], stop: tuple[str, ...]) -> GenerationReply[Key]:
        """Return `reply` with the text and the details from a response; raise one of MALFORMED if they are missing."""
        (choice,), usage = body["choices"], body.get("usage") or {}
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        if not isinstance(text, str) or choice["finish_reason"] not in ("stop", "length"):
            raise ValueError(f"finish_reason {choice['finish_reason']!r}, text of type {type(text).__name__}")
        details = reply.details | {
            "prompt_tokens": usage.get("prompt_tokens", reply.details["prompt_tokens"]),
            "finish": "ended" if choice["finish_reason"] == "stop" else "truncated",
            "length": usage.get("completion_tokens"),
            "cost": None,
            "probe_cost": None,
        }
        if choice.get("stop_reason") in stop:  # vLLM reports which stop string it was
            details |= {"finish": "stopped", "stop_reason": choice["stop_reason"]}
        if self.model_info.is_lastword and (report := choice.get("lastword")):
            details["finish"] = "stopped" if report.get("ended_by") == "stop" else details["finish"]
            details |= {
                "horizon": report["horizon"],
                "expected_length": report["predicted_length"],
                "cost": (report["forward_passes"], report["tokens_computed"]),  # probe included
                "seconds": report["seconds_decoding"],
            }
        if server := body.get("system_fingerprint"):
            details["versions"] = {**details["versions"], "server": str(server)[:100]}
        return replace(reply, text=text, details=details)
