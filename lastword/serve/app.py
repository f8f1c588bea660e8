"""The HTTP application and its uvicorn server."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from asyncio import TimerHandle
from collections.abc import AsyncGenerator, Callable, Collection
from functools import cache
from hashlib import sha256
from socket import socket
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lastword.errors import LastwordError, SettingError
from lastword.io.schema import parse_json_object
from lastword.models.base import MaskPredictor
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
from lastword.serve import protocol
from lastword.serve.engine import Engine, EngineState
from lastword.serve.protocol import ChatRequest, CompletionRequest, LengthsRequest, LengthsResponse
from lastword.serve.request import InvalidRequestError
from lastword.serve.scheduler import Scheduler
from lastword.serve.serving import ModelService
from lastword.serve.settings import ServerSettings, allowed_hosts
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.validation import short_repr
from lastword.version import __version__
from lastword.viz.replay import RUNS, for_script, inlined, player

log = logging.getLogger("lastword.serve")

MAX_CONNECTIONS = 1000  # a process may have 1,024 files open
SHUTDOWN_SECONDS = 5  # to send the last messages
PING_SECONDS = 15  # without an event; proxies close silent connections after 30 seconds or more
PUBLIC_PATHS = {"/", "/health", "/openapi.json"}  # without a key
JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@runtime_checkable
class Service(Protocol):
    """Answers the requests of the application: an engine of this process, or replicas."""

    def answer(self, body: ChatRequest | CompletionRequest) -> AsyncGenerator[dict[str, Any], None]: ...
    async def lengths(self, body: LengthsRequest) -> LengthsResponse: ...
    async def served_model(self) -> protocol.ServedModel: ...
    async def health(self) -> protocol.HealthResponse: ...
    async def metrics(self) -> bytes: ...


@runtime_checkable
class Lifecycle(Protocol):
    """An engine, or replicas, that start and stop with the server."""

    fault: BaseException | None  # the error that stopped it

    @property
    def state(self) -> EngineState: ...
    def start(self) -> None: ...
    def drain(self, seconds: float | None = None) -> None: ...
    async def stop(self, seconds: float | None = None) -> None: ...


def error_response(error: Exception) -> JSONResponse:
    """Return the response to an error in OpenAI's shape."""
    failure = protocol.http_failure(error)
    return JSONResponse(failure.reply.model_dump(), failure.status, failure.headers)


class RequestGuard:
    """ASGI middleware: checks host and API key, bounds the body, and cancels work for a closed connection."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, keys: Collection[str], hosts: Collection[str]) -> None:
        self._app, self._settings, self._hosts = app, settings, hosts
        self._digests = [_digest(key.strip().encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, timeout = Request(scope, receive), self._settings.client_timeout
        try:
            self._check_host(request.headers.get("host", ""))
            if self._digests and request.url.path not in PUBLIC_PATHS:
                self._check_key(request.headers.get("authorization", ""))
            body = await asyncio.wait_for(self._read_body(request), timeout)
        except ClientDisconnect:
            return
        except (InvalidRequestError, asyncio.TimeoutError) as error:
            if not isinstance(error, InvalidRequestError):
                message = f"the body did not arrive within {timeout:g} seconds"
                error = InvalidRequestError(message, code="request_timeout")
            await error_response(error)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await asyncio.shield(disconnect)

        response = asyncio.ensure_future(self._app(scope, receive_body, send))
        disconnect = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({response, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if response.done():
                response.result()
        finally:
            disconnect.cancel()
            response.cancel()
            await asyncio.wait({response})

    def _check_host(self, host: str) -> None:
        if self._hosts and re.sub(r":\d*$", "", host) not in self._hosts:
            allowed = ", ".join(sorted(self._hosts))
            raise InvalidRequestError(f"Host header {short_repr(host)} is not allowed; allowed: {allowed}")

    def _check_key(self, authorization: str) -> None:
        """Raise an error without a valid key. Digests of all keys are compared, in constant time."""
        scheme, _, key = authorization.partition(" ")
        # Header bytes are decoded as Latin-1, and keys are sent as UTF-8.
        digest = _digest(key.strip(" \t").encode("latin-1", errors="replace"))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            problem = "the API key is wrong" if key else "an API key is needed"
            message = f"{problem}; send the header `Authorization: Bearer KEY`"
            raise InvalidRequestError(message, code="invalid_api_key")

    async def _read_body(self, request: Request) -> bytes:
        limit, body = self._settings.max_body_bytes, bytearray()
        length = request.headers.get("content-length", "")
        if not (length.isdecimal() and int(length[:20]) > limit):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    break
            else:
                return bytes(body)
        message = f"the body has more than {limit} bytes, which is the limit"
        raise InvalidRequestError(message, code="request_too_large")


async def _disconnect(receive: Receive) -> Message:
    """Wait until the client disconnects."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


class StrictRequest(Request):
    """A request whose JSON may not hold duplicate names, NaN or deep nesting."""

    async def json(self) -> Any:
        if not hasattr(self, "_document"):
            self._document = parse_json_object(await self.body())
        return self._document


class StrictRoute(APIRoute):
    """A route that takes only strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler

        async def handle(request: Request) -> Response:
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if media_type != JSON_TYPE:
                raise InvalidRequestError(
                    f"a body of type {short_repr(media_type)} was sent; send JSON with the header "
                    f"`Content-Type: {JSON_TYPE}`",
                    code="unsupported_media_type",
                )
            request = StrictRequest(request.scope, request.receive)
            try:
                await request.json()
            except ValueError as error:
                message = f"the body is not valid JSON ({error})"
                raise InvalidRequestError(message, code="invalid_json") from error
            return await handler(request)

        return handle


async def server_sent_events(
    first: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield chunks as events, then [DONE]; an error is the last event instead."""
    try:
        yield _event(first)
        async for chunk in chunks:
            yield _event(chunk)
        yield ServerSentEvent("[DONE]", sep="\n")
    except Exception as error:
        failure = protocol.http_failure(error)
        if failure.status == 500:
            log.exception("a stream failed")
        yield _event(failure.reply.model_dump())
    finally:
        await chunks.aclose()


def _event(data: dict[str, Any]) -> ServerSentEvent:
    # A tokenizer may return half of a surrogate pair, which UTF-8 cannot encode.
    text = json.dumps(data, ensure_ascii=False).encode(errors="replace").decode()
    return ServerSentEvent(text, sep="\n")


SERVER_RECIPE = "the server's"  # how the page calls a recipe without a name
EXAMPLE_INDEX = 3  # the example among the test prompts of each family, not picked by its answer


@cache
def render_page(recipe: Recipe | None = None) -> str:
    """Return the page as HTML; `recipe` is the server's default."""
    recipes = {name: named.description for name, named in RECIPES.items()}
    default = DEFAULT_RECIPE
    if recipe is not None:
        default = next((name for name in RECIPES if Recipe.named(name) == recipe), SERVER_RECIPE)
        recipes.setdefault(default, "The recipe that this server was started with.")
    known = {
        "version": __version__,
        "recipes": recipes,
        "recipe": default,
        "lengths": [*SHORTHANDS["length"], *PARTS["length"]],
        "examples": {family: load_frozen("test", family)[EXAMPLE_INDEX].prompt for family in BENCHMARKS},
        "replay": player(),
        "runs": RUNS,
    }
    return inlined("page/index.html", "lastword.serve").replace("{{known}}", for_script(known))


ERRORS: dict[int | str, dict[str, Any]] = {
    f"{first}XX": {"model": protocol.ErrorResponse, "description": f"An error; see its code and {header}."}
    for first, header in ((4, "Retry-After (429)"), (5, "X-Should-Retry"))
}
EVENT_DATA = {"type": "string", "description": "A chunk as JSON, an error as JSON, or [DONE]."}
EVENT = {"type": "object", "properties": {"data": EVENT_DATA}, "required": ["data"]}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/lengths": LengthsRequest,
}


def create_app(
    service: Service,
    *,
    name: str,
    settings: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    """Return the application that serves a model under a name.

    With `keys`, all paths but `PUBLIC_PATHS` need one of them. With `hosts`, other Host headers are rejected.
    """
    if isinstance(keys, str) or not all(isinstance(key, str) and key.strip() for key in keys):
        raise SettingError("keys must be a list of strings that are not empty")
    app = FastAPI(title="lastword", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = StrictRoute
    app.add_middleware(RequestGuard, settings=settings, keys=keys, hosts=hosts)
    started = int(time.time())

    def check_model(model: str | None) -> None:
        if model not in (None, name):
            message = f"there is no model {model!r:.80}; this server has {name!r}"
            raise InvalidRequestError(message, "model", "model_not_found")

    async def answer(body: ChatRequest | CompletionRequest) -> Response:
        check_model(body.model)
        chunks = service.answer(body)
        first = await anext(chunks)  # a refusal before the first chunk has a status
        if body.stream:
            events = server_sent_events(first, chunks)
            return EventSourceResponse(events, ping=PING_SECONDS, ping_message_factory=_ping, sep="\n")
        await chunks.aclose()
        return JSONResponse(first)

    async def model_card() -> protocol.ModelResponse:
        return protocol.ModelResponse(id=name, created=started, lastword=await service.served_model())

    @app.post("/v1/chat/completions", response_model=protocol.ChatResponse, responses=STREAM | ERRORS)
    async def chat(body: ChatRequest) -> Response:
        """Answer a conversation."""
        return await answer(body)

    @app.post("/v1/completions", response_model=protocol.CompletionResponse, responses=STREAM | ERRORS)
    async def complete(body: CompletionRequest) -> Response:
        """Answer one or more prompts."""
        return await answer(body)

    @app.post("/v1/lengths", response_model=LengthsResponse, responses=ERRORS)
    async def lengths(body: LengthsRequest) -> LengthsResponse:
        """Predict the length of an answer without decoding it."""
        check_model(body.model)
        return await service.lengths(body)

    @app.get("/v1/models", response_model=protocol.ModelsResponse, responses=ERRORS)
    async def models() -> protocol.ModelsResponse:
        """List the model of this server."""
        return protocol.ModelsResponse(data=[await model_card()])

    @app.get("/v1/models/{model:path}", response_model=protocol.ModelResponse, responses=ERRORS)
    async def model(model: str) -> protocol.ModelResponse:
        """Describe the model of this name."""
        check_model(model)
        return await model_card()

    @app.get("/metrics", response_class=Response, responses=TEXT | ERRORS)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(await service.metrics(), media_type=METRICS_TYPE)

    @app.get(
        "/health",
        response_model=protocol.HealthResponse,
        responses={"4XX": ERRORS["4XX"], 503: {"model": protocol.HealthResponse}},
    )
    async def health() -> Response:
        """Return the state of the server; the status is 503 unless it takes requests."""
        state = await service.health()
        return JSONResponse(state.model_dump(), 200 if state.ready else 503)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(render_page(settings.recipe))

    _add_error_handlers(app)
    _complete_openapi(app, name, needs_key=bool(keys))
    return app


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="waiting", sep="\n")


def _add_error_handlers(app: FastAPI) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        return error_response(error)

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        details = {**first, "loc": first["loc"][1:]}  # without "body"
        return error_response(protocol.from_validation_error(BODIES[request.url.path], [details]))

    async def unknown(request: Request, error: HTTPException) -> Response:
        path = f"{request.url.path!r:.80}"
        problems = {
            404: InvalidRequestError(f"there is nothing at {path}", code="not_found"),
            405: InvalidRequestError(f"{path} does not support {request.method}", code="method_not_allowed"),
        }
        response = error_response(problems.get(error.status_code, InvalidRequestError(str(error.detail))))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(HTTPException, unknown)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(LastwordError, failed)
    app.add_exception_handler(Exception, failed)  # uvicorn logs it


def _complete_openapi(app: FastAPI, name: str, *, needs_key: bool) -> None:
    """Add the name of the model and the API key to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = generate()
        schemas = document["components"]["schemas"]
        for kind in BODIES.values():
            schemas[kind.__name__]["properties"]["model"]["enum"] = [name]
        if needs_key:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if needs_key and path not in PUBLIC_PATHS:
                    operation["security"] = [{"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


class ClientTimeoutProtocol(H11Protocol):
    """Aborts the connection of a client that does not read what it was sent within `client_timeout`.

    asyncio calls `pause_writing` when the write buffer is full and `resume_writing` once it is drained.
    """

    client_timeout: float
    _abort: TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort = self.loop.call_later(self.client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_abort()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_abort()
        super().connection_lost(exc)

    def _cancel_abort(self) -> None:
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None


class Server(uvicorn.Server):
    """A uvicorn server that starts its engine once it listens, and drains it before it exits."""

    def __init__(
        self,
        app: FastAPI,
        engine: Lifecycle,
        *,
        name: str,
        host: str,
        port: int,
        settings: ServerSettings,
        print_line: Callable[[str], None],
    ) -> None:
        class HttpProtocol(ClientTimeoutProtocol):
            client_timeout = settings.client_timeout

        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=HttpProtocol,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            limit_concurrency=MAX_CONNECTIONS,
            server_header=False,
        )
        super().__init__(config)
        self._engine, self._name, self._settings, self._print = engine, name, settings, print_line

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)  # exits if it cannot listen
        self._engine.start()
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                self._print(f"lastword serves {self._name} at http://{host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and exit at the second."""
        if self._engine.state in ("draining", "stopped"):
            self.should_exit = self.force_exit = True
            self._engine.drain(0.0)
        else:
            self._print(f"lastword drains: at most {self._settings.drain_timeout:g} seconds")
            self._engine.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to exit: once the engine has stopped."""
        return await super().on_tick(counter) or self._engine.state == "stopped"

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._engine.stop(0.0)

    def run(self, sockets: list[socket] | None = None) -> None:
        """Serve until a signal or a fault of the engine, which is raised."""
        super().run(sockets)
        fault = self._engine.fault
        if isinstance(fault, LastwordError):
            raise fault
        if fault is not None:
            raise RuntimeError("the engine stopped") from fault


def create_server(
    model: MaskPredictor,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    scheduler: Scheduler = Scheduler(),
    print_line: Callable[[str], None] = log.info,
) -> Server:
    """Return a server of a model; its `run` serves until a signal."""
    engine, hosts = Engine(model, settings, scheduler), allowed_hosts(host, keys)
    app = create_app(ModelService(engine, name), name=name, settings=settings, keys=keys, hosts=hosts)
    return Server(app, engine, name=name, host=host, port=port, settings=settings, print_line=print_line)
