"""The HTTP application and its uvicorn server."""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from socket import socket
from types import FrameType
from typing import Any, Literal, Protocol

import uvicorn
from anyio import fail_after, move_on_after
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.exceptions import HTTPException
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection

from lastword.errors import LastwordError, SettingError
from lastword.io.schema import parse_json_object
from lastword.models.base import MaskPredictor
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
from lastword.serve import protocol
from lastword.serve.access_log import ID_HEADER, AccessLog, RequestRecord, error_response
from lastword.serve.connections import MAX_HEAD_BYTES, limited_protocol
from lastword.serve.engine import Lifecycle, ServerEngine
from lastword.serve.metrics import HttpMetrics
from lastword.serve.protocol import BODIES, AnswerBody, ChatRequest, CompletionRequest, LengthsRequest, LengthsResponse
from lastword.serve.request import REQUEST_ERRORS, InvalidRequestError, ServerError
from lastword.serve.scheduler import Scheduler
from lastword.serve.serving import ModelService
from lastword.serve.settings import ServerSettings, allowed_hosts
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.validation import short_repr
from lastword.version import __version__
from lastword.viz.replay import RUNS, for_script, inlined

log = logging.getLogger("lastword.serve")

SHUTDOWN_SECONDS = 5  # at exit, to finish sending responses
PING_SECONDS = 15  # between pings in a silent stream; proxies close idle connections after 30 seconds or more
MAX_JSON_ITEMS = 20_000  # arrays, objects and fields of a body; parsing more of them delays other clients
JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)  # matches an unfinished string, too
PUBLIC_PATHS = {"/", "/live", "/ready", "/health", "/openapi.json"}  # paths that need no key
BUILD_SECONDS = 1.0  # to read the model's description for the metrics, which replicas may not answer
JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Service(Protocol):
    """A backend of the HTTP application: an engine in this process, or Ray replicas."""

    def answer(self, body: AnswerBody) -> AsyncGenerator[dict[str, Any], None]: ...
    async def lengths(self, body: LengthsRequest) -> LengthsResponse: ...
    async def served_model(self) -> protocol.ServedModel: ...
    async def health(self) -> protocol.HealthResponse: ...
    async def metrics(self) -> bytes: ...


class ApiKeys(AuthenticationBackend):
    """An authentication backend that requires one of several keys, except for `PUBLIC_PATHS`."""

    def __init__(self, keys: Collection[str]) -> None:
        self._digests = [sha256(key.strip().encode()).digest() for key in keys]

    async def authenticate(self, conn: HTTPConnection) -> None:
        """Raise AuthenticationError without a valid key. All keys' digests are compared, in constant time."""
        scheme, _, key = conn.headers.get("authorization", "").partition(" ")
        # starlette decodes header bytes as Latin-1, but clients send keys as UTF-8.
        digest = sha256(key.strip(" \t").encode("latin-1", errors="replace")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if conn.scope["path"] not in PUBLIC_PATHS and (scheme.lower() != "bearer" or not any(matches)):
            problem = "the API key is wrong" if key else "an API key is needed"
            raise AuthenticationError(f"{problem}; send the header `Authorization: Bearer KEY`")


class AllowedHosts(AuthenticationBackend):
    """A backend that rejects requests with other Host headers than `hosts`."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = {host.lower() for host in hosts}

    async def authenticate(self, conn: HTTPConnection) -> None:
        given = conn.headers.get("host", "")
        if re.sub(r":\d*$", "", given).lower() not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            raise AuthenticationError(f"the Host header {short_repr(given)} is not allowed; use one of {known}")


def refuse(code: str) -> Callable[[HTTPConnection, Exception], Response]:
    """Return a function that returns the response with this code to a failed authentication."""
    return lambda connection, error: error_response(connection, InvalidRequestError(str(error), code=code))


class JsonRoute(APIRoute):
    """A route that accepts strict JSON of limited size and cancels its handler if the client disconnects."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler

        async def handle(request: Request) -> Response:
            try:
                # FastAPI reads the body from these caches of starlette.
                request._body, request._json = await read_json(request, request.app.state.settings)
                return await cancel_on_disconnect(handler(request), request)
            except ClientDisconnect:
                return Response(status_code=499)  # never sent, the connection is closed

        return handle


async def read_json(request: Request, settings: ServerSettings) -> tuple[bytes, dict[str, Any]]:
    """Return the body as bytes and as a strict JSON object; raise InvalidRequestError for any other body."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_TYPE:
        raise InvalidRequestError(
            f"a body of type {short_repr(media_type)} was sent; send JSON with the header `Content-Type: {JSON_TYPE}`",
            code="unsupported_media_type",
        )
    limit, timeout, body = settings.max_body_bytes, settings.client_timeout, bytearray()
    try:
        with fail_after(timeout):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    message = f"the body has more than {limit} bytes, which is the limit"
                    raise InvalidRequestError(message, code="request_too_large")
        if count_json_items(body) > MAX_JSON_ITEMS < count_json_items(JSON_STRING.sub(b"", body)):
            raise ValueError(f"it has more than {MAX_JSON_ITEMS} arrays, objects and fields")
        return bytes(body), parse_json_object(bytes(body))
    except TimeoutError as error:
        message = f"the body did not arrive within {timeout:g} seconds"
        raise InvalidRequestError(message, code="request_timeout") from error
    except ValueError as error:
        raise InvalidRequestError(f"the body is not valid JSON ({error})", code="invalid_json") from error


def count_json_items(text: bytes | bytearray) -> int:
    """Return the number of arrays, objects and fields of JSON, or more if its strings contain brackets or colons."""
    return sum(map(text.count, (b"[", b"{", b":")))


async def cancel_on_disconnect(response: Coroutine[Any, Any, Response], request: Request) -> Response:
    """Await the response; if the client disconnects first, cancel it and raise ClientDisconnect."""
    task, disconnect = asyncio.ensure_future(response), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        disconnect.cancel()
        task.cancel()
        await asyncio.wait({task})


async def server_sent_events(
    first: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None], record: RequestRecord, *, with_usage: bool
) -> AsyncGenerator[dict[str, str], None]:
    """Yield all chunks as events, then [DONE]; if an error is raised, it is the last event instead.

    The last chunk, which holds the usage, is left out unless `with_usage` is set.
    """
    try:
        yield _event(first)
        async for chunk in chunks:
            record.observe(chunk)
            if chunk["choices"] or with_usage:
                yield _event(chunk)
        yield {"data": "[DONE]"}
    except Exception as error:
        failure = ServerError.of(error)
        record.error = failure.code
        if failure.kind.status == 500:
            log.exception("the stream of request %s failed", record.id)
        yield _event(failure.body)
    finally:
        await chunks.aclose()


def _to_json(data: dict[str, Any]) -> bytes:
    # A tokenizer may return half of a surrogate pair, which UTF-8 cannot encode.
    return json.dumps(data, ensure_ascii=False).encode(errors="replace")


def _event(data: dict[str, Any]) -> dict[str, str]:
    return {"data": _to_json(data).decode()}


async def failed(request: Request, error: Exception) -> Response:
    """Return the response to a LastwordError, and log one that no request caused."""
    if not isinstance(error, (ServerError, *REQUEST_ERRORS)):
        log.error("the request %s failed", request.state.record.id, exc_info=error)
    return error_response(request, error)


async def invalid(request: Request, error: RequestValidationError) -> Response:
    """Return the response to a body that pydantic rejects."""
    first = error.errors()[0]
    details = {**first, "loc": first["loc"][1:]}  # without the leading "body"
    return error_response(request, protocol.from_validation_error(BODIES[request.url.path], [details]))


async def unknown(request: Request, error: HTTPException) -> Response:
    """Return the response to a path or method that does not exist."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    message = f"{request.method} {request.url.path!r:.80} is not possible ({error.detail})"
    message += "; use /v1/chat/completions, or see /openapi.json for all paths"
    response = error_response(request, InvalidRequestError(message, code=code))
    response.headers.update(error.headers or {})
    return response


HANDLERS: Any = {HTTPException: unknown, RequestValidationError: invalid, LastwordError: failed}


SERVER_RECIPE = "the server's"  # shown on the page for a default recipe that has no name
EXAMPLE_INDEX = 3  # of the test prompt that the page shows per family; chosen without looking at answers


@cache
def render_page(recipe: Recipe | None = None) -> str:
    """Return the HTML of the page at /; `recipe` is the server's default."""
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
        "replay": inlined(),
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
HEALTH: dict[int | str, dict[str, Any]] = {"4XX": ERRORS["4XX"], 503: {"model": protocol.HealthResponse}}
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def create_app(
    service: Service,
    *,
    name: str,
    settings: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    """Return the FastAPI application that serves a model as `name`.

    If `keys` are given, all paths except `PUBLIC_PATHS` need one. With `hosts`, other Host headers are rejected.
    """
    if isinstance(keys, str) or not all(isinstance(key, str) and key.strip() for key in keys):
        raise SettingError("keys must be a list of strings that are not empty")
    app = FastAPI(
        title="lastword",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
    )
    app.state.settings = settings
    needs_key = [Security(HTTPBearer(scheme_name="key", auto_error=False))] if keys else []  # only for /openapi.json
    api = APIRouter(route_class=JsonRoute, responses=ERRORS, dependencies=needs_key)
    started, has_build = int(time.time()), False
    http_metrics = app.state.metrics = HttpMetrics()

    def check_model(model: str | None) -> None:
        if model not in (None, name):
            message = f"there is no model {model!r:.80}; this server has {name!r}"
            raise InvalidRequestError(message, "model", "model_not_found")

    async def answer(body: AnswerBody, request: Request) -> Response:
        record: RequestRecord = request.state.record
        record.metadata = body.metadata
        check_model(body.model)
        chunks = service.answer(body)
        first = await anext(chunks)  # an error before the first chunk sets the HTTP status
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            events = server_sent_events(first, chunks, record, with_usage=with_usage)
            ping = partial(ServerSentEvent, comment="waiting", sep="\n")
            return EventSourceResponse(events, ping=PING_SECONDS, ping_message_factory=ping, sep="\n")
        await chunks.aclose()
        record.observe(first)
        return Response(_to_json(first), media_type=JSON_TYPE)

    async def model_card() -> protocol.ModelResponse:
        return protocol.ModelResponse(id=name, created=started, lastword=await service.served_model())

    @api.post("/v1/chat/completions", response_model=protocol.ChatResponse, responses=STREAM)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await answer(body, request)

    @api.post("/v1/completions", response_model=protocol.CompletionResponse, responses=STREAM)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Answer one or more prompts."""
        return await answer(body, request)

    @api.post("/v1/lengths")
    async def lengths(body: LengthsRequest) -> LengthsResponse:
        """Predict the length of an answer without decoding it."""
        check_model(body.model)
        return await service.lengths(body)

    @api.get("/v1/models")
    async def models() -> protocol.ModelsResponse:
        """List the model of this server."""
        return protocol.ModelsResponse(data=[await model_card()])

    @api.get("/v1/models/{model:path}")
    async def model(model: str) -> protocol.ModelResponse:
        """Describe the model with this name."""
        check_model(model)
        return await model_card()

    @api.get("/metrics", response_class=Response, responses=TEXT)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        nonlocal has_build
        if not has_build:
            with suppress(Exception), move_on_after(BUILD_SECONDS):  # replicas may not be ready
                card = await service.served_model()
                build = {"version": __version__, "model": name, "dtype": card.dtype, "recipe": card.recipe}
                http_metrics.build.info(build)
                has_build = True
        return Response(await service.metrics() + http_metrics.text(), media_type=METRICS_TYPE)

    @app.get("/live", responses={"4XX": ERRORS["4XX"]})
    async def live() -> dict[Literal["live"], bool]:
        """Return that the process runs; the engine may still be starting or draining."""
        return {"live": True}

    @app.get("/ready", responses=HEALTH)
    @app.get("/health", responses=HEALTH)
    async def health(response: Response) -> protocol.HealthResponse:
        """Return the state of the server; the HTTP status is 503 unless it is ready."""
        state = await service.health()
        response.status_code = 200 if state.ready else 503
        return state

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(render_page(settings.recipe))

    def openapi() -> dict[str, Any]:
        document = FastAPI.openapi(app)
        for kind in BODIES.values():
            fields = document["components"]["schemas"][kind.__name__]["properties"]
            fields["model"]["enum"] = [name]
            for field, limit in {"n": settings.max_choices, "timeout": settings.timeout}.items():
                if field in fields:
                    fields[field]["anyOf"][0]["maximum"] = limit
        return document

    app.include_router(api)
    app.openapi = openapi  # type: ignore[method-assign]
    if keys:
        app.add_middleware(AuthenticationMiddleware, backend=ApiKeys(keys), on_error=refuse("invalid_api_key"))
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # openai's client sends headers of its own
            expose_headers=[ID_HEADER, "Retry-After", "X-Should-Retry"],
        )
    if hosts:
        app.add_middleware(AuthenticationMiddleware, backend=AllowedHosts(hosts), on_error=refuse("invalid_host"))
    routes = [*api.routes, *app.routes]
    app.add_middleware(AccessLog, metrics=http_metrics, routes=routes, log_format=settings.access_log)
    return app


class Server(uvicorn.Server):
    """A uvicorn server that starts the engine when it begins to listen, and drains the engine before exit."""

    def __init__(
        self,
        service: Service,
        engine: Lifecycle,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int = 8000,
        settings: ServerSettings = ServerSettings(),
        keys: Collection[str] = (),
        print_line: Callable[[str], None] = log.info,
    ) -> None:
        self.app = create_app(service, name=name, settings=settings, keys=keys, hosts=allowed_hosts(host, keys))
        config = uvicorn.Config(
            self.app,
            host=host,
            port=port,
            http=limited_protocol(settings, self.app.state.metrics.refused.inc),
            ws="none",
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            server_header=False,
        )
        super().__init__(config)
        self._engine, self._name, self._settings, self._print = engine, name, settings, print_line

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)  # exits if it cannot listen
        gc.freeze()  # else a large body makes the collector visit every object of torch again and again
        self._engine.start()
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                self._print(f"lastword serves {self._name} at http://{host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain the engine at the first signal, and exit at the second."""
        if self._engine.state in ("draining", "stopped"):
            self.should_exit = self.force_exit = True
            self._engine.drain(0.0)
        else:
            self._print(f"lastword drains: at most {self._settings.drain_timeout:g} seconds")
            self._engine.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to exit: if uvicorn would, or if the engine has stopped."""
        return await super().on_tick(counter) or self._engine.state == "stopped"

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._engine.stop(0.0)

    def run(self, sockets: list[socket] | None = None) -> None:
        """Serve until a signal, or until the engine fails; raise its error."""
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
    settings: ServerSettings = ServerSettings(),
    scheduler: Scheduler = Scheduler(),
    **options: Any,
) -> Server:
    """Return a server for the model; its `run` serves until a signal. `options` are passed to `Server`."""
    engine = ServerEngine(model, settings, scheduler)
    return Server(ModelService(engine, name), engine, name=name, settings=settings, **options)
