"""The HTTP application and its uvicorn server."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from functools import cache
from hashlib import sha256
from socket import socket
from types import FrameType
from typing import Any, Protocol, TypeVar, runtime_checkable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Server

from lastword.engines.base import compute_dtype, environment
from lastword.errors import LastwordError, SettingError
from lastword.io.schema import parse_json_object
from lastword.models.base import MaskPredictor
from lastword.models.weights import fingerprint
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT_RECIPE, PARTS, RECIPES, SHORTHANDS
from lastword.recipe.text import to_text
from lastword.serve.conversion import QUANTILES, ChunkBuilder, IndexedEvents, ResponseBuilder, merge_events
from lastword.serve.conversion import to_lengths_query as to_probe
from lastword.serve.conversion import to_server_requests as to_jobs
from lastword.serve.engine import Engine, EngineState
from lastword.serve.protocol import (
    AuthenticationError,
    BodyTimeoutError,
    BodyTooLargeError,
    ChatRequest,
    ChatResponse,
    CompletionRequest,
    CompletionResponse,
    ErrorResponse,
    HealthResponse,
    InvalidRequestError,
    LengthsRequest,
    LengthsResponse,
    MediaTypeError,
    ModelResponse,
    ModelsResponse,
    NotFoundError,
    ServedModel,
    from_validation_error,
    http_failure,
)
from lastword.serve.request import RequestFinished
from lastword.serve.scheduler import Scheduler
from lastword.serve.settings import ServerSettings, allowed_hosts, check_exposed
from lastword.tasks import BENCHMARKS
from lastword.tasks.frozen import load_frozen
from lastword.validation import short_repr
from lastword.version import __version__
from lastword.viz.replay import RUNS, for_script, inlined, player

Result = TypeVar("Result")


class ClientDisconnected(Exception):
    """The client closed the connection."""


async def cancel_on_disconnect(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of the work, which is cancelled as soon as the client leaves. Its body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})  # so that what it holds is given back now


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def with_send_timeout(send: Send, seconds: float) -> Send:
    """Send, and cut the connection of a client that does not take a message within so many seconds.

    The server in front of us then says that the client left. Behind no server there is no connection.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)  # uvicorn's
    if transport is None:
        return send

    async def sending(message: Message) -> None:
        cut = asyncio.get_running_loop().call_later(seconds, transport.abort)
        try:
            await send(message)
        finally:
            cut.cancel()

    return sending


Kind = TypeVar("Kind", bound=BaseModel)
JSON_TYPE = "application/json"


async def read_request(request: Request, kind: type[Kind], limits: ServerSettings) -> Kind:
    """The body as a value of this kind; an Invalid says what is wrong with it."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON_TYPE:
        raise MediaTypeError(
            f"a body of type {short_repr(media)} was sent; send JSON with the header "
            f"`Content-Type: {JSON_TYPE}`"
        )
    try:
        return kind.model_validate(parse_json_object(await read_body(request, limits)))
    except ValidationError as wrong:
        raise from_validation_error(kind, wrong) from wrong
    except ValueError as broken:
        raise InvalidRequestError(
            f"the body is not JSON as we read it ({broken})", code="invalid_json"
        ) from broken


async def read_body(request: Request, limits: ServerSettings) -> bytes:
    """The bytes of a body that is no longer, and arrives no later, than limits say."""
    try:
        return await asyncio.wait_for(_bytes(request, limits.body), limits.reading)
    except asyncio.TimeoutError:
        raise BodyTimeoutError(f"the body did not arrive within {limits.reading:g} seconds") from None


async def _bytes(request: Request, most: int) -> bytes:
    """All of it, unless it is too much; a header that says so is believed, one that does not is not."""
    length = request.headers.get("content-length", "")
    read_body = bytearray()
    if not (length.isdecimal() and int(length[:20]) > most):
        async for chunk in request.stream():
            read_body += chunk
            if len(read_body) > most:
                break
        else:
            return bytes(read_body)
    raise BodyTooLargeError(f"the body has more than {most} bytes, which is all that is read")


KEEPALIVE_SECONDS = 15.0  # seconds without an event: proxies hang up after 30 or more
KEEPALIVE_COMMENT = b": waiting\n\n"  # clients pass over it


class EventStreamResponse(Response):
    """Server-sent events; whatever makes them is closed at the end. While none comes, comments are sent."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        self.events, self.close = events, close
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await cancel_on_disconnect(receive, self._send(send))
        except ClientDisconnected:
            pass
        finally:
            await self.events.aclose()
            await self.close()  # an event that was never asked for closes nothing

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def body(chunk: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        while True:
            coming = asyncio.ensure_future(anext(self.events, None))
            try:
                while not (await asyncio.wait({coming}, timeout=KEEPALIVE_SECONDS))[0]:
                    await body(KEEPALIVE_COMMENT)
                chunk = coming.result()
            finally:
                if coming.cancel():  # the client left, and what is at work cannot be closed
                    await asyncio.wait({coming})
            if chunk is None:
                break
            await body(chunk)
        await body(b"", more=False)


AUTH_SCHEME = "bearer"


class ApiKeys:
    """The keys that open the server; where there are none, it is open."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        if isinstance(keys, str) or not all(isinstance(key, str) and key.strip() for key in keys):
            raise SettingError(
                "keys must be a list of texts, none of them empty: an empty key would let everybody in"
            )
        self._digests = [_digest(key.strip().encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, header: str | None) -> None:
        """Refuse a request whose `Authorization` header holds no key of ours.

        Every key is compared, and by its digest, so that the time taken says nothing of any.
        """
        if not self._digests:
            return
        scheme, _, given = (header or "").partition(" ")
        # A header's letters are the bytes that came, and a key is sent as UTF-8.
        found = _digest(given.strip(" \t").encode("latin-1", errors="replace"))
        fits = [hmac.compare_digest(found, digest) for digest in self._digests]
        if scheme.lower() != AUTH_SCHEME or not any(fits):
            raise AuthenticationError(
                "this server asks for a key: send the header `Authorization: Bearer KEY`"
                if not given
                else "this is not a key of this server; ask its operator for one"
            )


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


SERVER_RECIPE = "the server's"  # what the page calls a recipe that has no name
EXAMPLE_INDEX = 3  # of the example among each family's test prompts: none was picked for its answer


@cache
def render_page(recipe: Recipe | None = None) -> str:
    """The whole page as HTML; `recipe` is the server's own. Nothing else in it depends on the server."""
    recipes = {name: named.description for name, named in RECIPES.items()}
    usual = DEFAULT_RECIPE
    if recipe is not None:
        usual = next((name for name in RECIPES if Recipe.named(name) == recipe), SERVER_RECIPE)
        recipes.setdefault(usual, "What whoever runs this server chose.")  # who has no key sees it too
    known = {
        "version": __version__,
        "recipes": recipes,
        "recipe": usual,
        "lengths": [*SHORTHANDS["length"], *PARTS["length"]],
        "examples": {family: load_frozen("test", family)[EXAMPLE_INDEX].prompt for family in BENCHMARKS},
        "replay": player(),
        "runs": RUNS,
    }
    return inlined("page/index.html", "lastword.serve").replace("{{known}}", for_script(known))


REQUEST_MODELS: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, LengthsRequest)
REFERENCE = "#/components/schemas/{model}"
RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
STATUS_DESCRIPTIONS = {
    400: "The request cannot be answered as it stands; the message names the field.",
    401: "No key, or none of this server's.",
    404: "There is no such model.",
    405: "The path takes another method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not sent as JSON.",
    429: "Too much work waits; Retry-After says how long to.",
    500: "The server failed at this request.",
    503: "The server is stopping, or the deadline cannot be met.",
    504: "The deadline passed before the answer was complete.",
}

CHUNK = {"type": "string", "description": "A chunk as JSON, an error as JSON, or [DONE]."}
EVENT = {"type": "object", "properties": {"data": CHUNK}, "required": ["data"]}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}

PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers beside 200, all in one shape."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": STATUS_DESCRIPTIONS[status]} for status in statuses
    }
    if 429 in found:
        found[429]["headers"] = RETRY
    return found


def request_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The body of a route that reads it by itself."""
    schema = {"$ref": REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi_document(app: FastAPI, name: str, *, keyed: bool) -> Callable[[], dict[str, Any]]:
    """What to put in the place of `app.openapi`."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            _, requests = models_json_schema(
                [(kind, "validation") for kind in REQUEST_MODELS], ref_template=REFERENCE
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(requests["$defs"])
            for kind in REQUEST_MODELS:
                schemas[kind.__name__]["properties"]["model"]["enum"] = [name]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)  # ours are 400
            if keyed:
                _add_security(document)
        return app.openapi_schema or {}

    return openapi


def _add_security(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for operation in path.values():
            if "401" in operation["responses"]:
                operation["security"] = [{"key": []}]


class AnswerHandlers:
    """What routes do, once a body is read."""

    def __init__(self, engine: Engine, name: str, limits: ServerSettings) -> None:
        self._engine, self._name, self._limits = engine, name, limits

    async def answer(self, receive: Receive, asking: ChatRequest | CompletionRequest) -> Response:
        """The whole reply, or a stream of it."""
        from starlette.responses import JSONResponse

        if asking.stream:
            return await cancel_on_disconnect(receive, self._begun(asking))
        reply = await cancel_on_disconnect(receive, self._whole(asking))
        return JSONResponse(reply.model_dump())

    async def _whole(self, asking: ChatRequest | CompletionRequest) -> ChatResponse | CompletionResponse:
        answered, heard = await self._asked(asking)
        answers: dict[int, RequestFinished] = {}
        try:
            async for index, event in heard:
                if isinstance(event, RequestFinished):
                    answers[index] = event
        finally:
            await heard.aclose()
        return answered.reply([answers[index] for index in range(len(answers))])

    async def _begun(self, asking: ChatRequest | CompletionRequest) -> Response:
        """A stream, once the engine has said a first word: what it refuses before that has a status."""

        answered, heard = await self._asked(asking)
        try:
            first = await anext(heard)
        except BaseException:
            await heard.aclose()
            raise
        chunks = ChunkBuilder(answered, asking, self._engine.model)
        return EventStreamResponse(chunks.events(first, heard), heard.aclose)

    async def _asked(self, asking: ChatRequest | CompletionRequest) -> tuple[ResponseBuilder, IndexedEvents]:
        engine = self._engine
        jobs = await asyncio.to_thread(to_jobs, asking, engine.model, self._limits)
        answered = ResponseBuilder(jobs, self._name, chat=isinstance(asking, ChatRequest))
        return answered, merge_events(engine.submit(*jobs))

    async def lengths(self, receive: Receive, asking: LengthsRequest) -> Response:
        """How long the answer will be."""
        from starlette.responses import JSONResponse

        return JSONResponse((await cancel_on_disconnect(receive, self._lengths(asking))).model_dump())

    async def _lengths(self, asking: LengthsRequest) -> LengthsResponse:
        probe = await asyncio.to_thread(to_probe, asking, self._engine.model, self._limits)
        found = await self._engine.lengths(*probe)
        wanted = QUANTILES if asking.quantiles is None else asking.quantiles
        return LengthsResponse(
            model=self._name,
            prompt_tokens=len(probe.prompt),
            limit=found.slots,
            mean=found.mean.item(),
            quantiles={str(q): int(found.quantile(q)) for q in wanted},
            curve=[round(share, 9) for share in found.survival.tolist()],
            tail=found.tail.item(),
            reading=to_text(probe.reading) if found.explanation is None else str(found.explanation),
        )


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
POST_ERRORS = error_responses(400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)
GET_ERRORS = error_responses(401, 405, 500)
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; access logs show it


class LastwordApp(FastAPI):
    """FastAPI's, whose every answer must be taken in time, and which may heed by what name it is called."""

    reading: float
    hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = super().__call__
        if scope["type"] == "http" and self.hosts:
            called = Headers(scope=scope).get("host", "")
            if re.sub(r":\d*$", "", called) not in self.hosts:
                status, reply, headers = http_failure(
                    InvalidRequestError(
                        f"this server is not called {called!r:.80}; ask it by its own address"
                    )
                )
                answer = JSONResponse(reply.model_dump(), status, headers)
        await answer(scope, receive, with_send_timeout(send, self.reading))


def create_app(
    engine: Engine,
    *,
    name: str,
    limits: ServerSettings | None = None,
    keys: Collection[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application that serves an engine's model under a name, to who has a key where there are any.

    With `hosts` it answers only requests that call it by one of these: a page of another site that lets its
    own name point to this machine would else be answered like one of ours.
    """
    limits, lock = limits or engine.limits, ApiKeys(keys)
    described_model = ModelResponse(
        id=name,
        created=int(time.time()),
        lastword=ServedModel(
            chat=engine.tokenizer.chat_template is not None,
            slots=limits.horizon or engine.model.default_max_new_tokens,
            positions=engine.model.max_seq_len,
            weights=fingerprint(engine.model),
            dtype=compute_dtype(engine.model),
            hardware=environment(engine.model)["hardware"],
            recipe=engine.recipe.label(),
        ),
    )
    app = LastwordApp(
        title="lastword",
        version=__version__,
        docs_url=None,  # theirs load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.reading, app.hosts = limits.reading, hosts
    answering = AnswerHandlers(engine, name, limits)

    async def keyed(request: Request) -> None:
        lock.check(request.headers.get("authorization"))

    def served(model: str | None) -> None:
        if model not in (None, name):
            raise NotFoundError(
                f"there is no model {model!r:.80} here; this server has {name!r}",
                "model",
                "model_not_found",
            )

    locked = APIRouter(dependencies=[Depends(keyed)])

    @locked.post(
        "/v1/chat/completions",
        response_model=ChatResponse,
        responses=STREAMED | POST_ERRORS,
        openapi_extra=request_body(ChatRequest),
    )
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        asking = await read_request(request, ChatRequest, limits)
        served(asking.model)
        return await answering.answer(request.receive, asking)

    @locked.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses=STREAMED | POST_ERRORS,
        openapi_extra=request_body(CompletionRequest),
    )
    async def complete(request: Request) -> Response:
        """Answer a prompt, or several."""
        asking = await read_request(request, CompletionRequest, limits)
        served(asking.model)
        return await answering.answer(request.receive, asking)

    @locked.post(
        "/v1/lengths",
        response_model=LengthsResponse,
        responses=POST_ERRORS,
        openapi_extra=request_body(LengthsRequest),
    )
    async def lengths(request: Request) -> Response:
        """Say how long the answer will be, without writing it."""
        asking = await read_request(request, LengthsRequest, limits)
        served(asking.model)
        return await answering.lengths(request.receive, asking)

    @locked.get("/v1/models", response_model=ModelsResponse, responses=GET_ERRORS)
    async def models() -> Response:
        """The model that is served."""
        return _json(ModelsResponse(data=[described_model]))

    @locked.get(
        "/v1/models/{model:path}",
        response_model=ModelResponse,
        responses={**GET_ERRORS, **error_responses(404)},
    )
    async def model(model: str) -> Response:
        """The model of this name."""
        served(model)
        return _json(described_model)

    @locked.get("/metrics", response_class=Response, responses=PLAIN | GET_ERRORS)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(engine.metrics.text(), media_type=METRICS_TYPE)

    app.include_router(locked)

    @app.get(
        "/health",
        response_model=HealthResponse,
        responses={503: {"model": HealthResponse}, **error_responses(405, 500)},
    )
    async def health() -> Response:
        """Is the server alive, and does it take requests? 503 where it does not."""
        state = engine.state
        reply = HealthResponse(
            ready=state == "ready",
            draining=state == "draining",
            state=state,
            counts=engine.counts(),
        )
        return _json(reply, 200 if reply.ready else 503)

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        """The page."""
        return HTMLResponse(render_page(limits.recipe))

    add_error_handlers(app)
    app.openapi = openapi_document(app, name, keyed=bool(lock))  # type: ignore[method-assign]
    return app


def _json(reply: BaseModel, status: int = 200) -> JSONResponse:
    return JSONResponse(reply.model_dump(), status)


def add_error_handlers(app: FastAPI) -> None:
    """Whatever goes wrong is told in one shape."""

    async def failed(request: Request, error: Exception) -> Response:
        status, reply, headers = http_failure(error)
        return JSONResponse(reply.model_dump(), status, headers)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {
            404: f"there is nothing at {request.url.path!r:.80}",
            405: f"{request.method} is not a method of {request.url.path!r:.80}",
        }
        told = InvalidRequestError(words.get(error.status_code, str(error.detail)))
        told.code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, told.code)
        reply = http_failure(told).reply
        return JSONResponse(reply.model_dump(), error.status_code, dict(error.headers or {}))

    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(LastwordError, failed)
    app.add_exception_handler(Exception, failed)  # logged by the server in front
    for gone in (ClientDisconnected, ClientDisconnect):
        app.add_exception_handler(gone, left)


log = logging.getLogger("lastword.serve")

MAX_CONNECTIONS = 1000  # at once; a process may have 1,024 files open
SHUTDOWN_SECONDS = 5  # seconds to send what was said last


@runtime_checkable
class EngineLifecycle(Protocol):
    """What starts, drains and stops with the process that listens: an engine, or all replicas."""

    fault: BaseException | None

    @property
    def state(self) -> EngineState:
        """Where it stands."""

    def start(self) -> None:
        """Take requests as soon as that can be."""

    def drain(self, seconds: float | None = None) -> None:
        """Take no more; those in hand have so long."""

    async def stop(self, seconds: float | None = None) -> None:
        """Drain, and wait until that is done."""


def serve(
    model: MaskPredictor,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    without_key: bool = False,
    say: Callable[[str], None] = log.info,
) -> None:
    """Serve a model until a signal comes: the first drains, a second one stops.

    Whoever reaches the address may ask: one that others reach needs keys, or the word that it is meant.
    """
    check_exposed(host, keys, without_key)
    create_server(model, name=name, host=host, port=port, limits=limits, keys=keys, say=say).run()


def create_server(
    model: MaskPredictor,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    schedule: Scheduler = Scheduler(),
    say: Callable[[str], None] = log.info,
) -> Server:
    """A uvicorn server of a model, which starts and stops the engine with itself."""
    engine = Engine(model, limits, schedule)
    hosts = allowed_hosts(host, keys)
    app = create_app(engine, name=name, limits=limits, keys=keys, hosts=hosts)
    return build_server(app, engine, name=name, host=host, port=port, limits=limits, say=say)


def build_server(
    app: FastAPI,
    engine: EngineLifecycle,
    *,
    name: str,
    host: str,
    port: int,
    limits: ServerSettings,
    say: Callable[[str], None],
) -> Server:
    """A uvicorn server that starts and stops an engine with itself, and says where it listens."""
    import uvicorn

    class Draining(uvicorn.Server):
        """It says where it listens, and drains before it leaves."""

        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)  # leaves the process where it cannot listen
            engine.start()
            for served in self.servers:
                for build_server in served.sockets:
                    at, number = build_server.getsockname()[:2]
                    shown = f"[{at}]" if ":" in at else at
                    say(f"lastword serves {name} at http://{shown}:{number}")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if engine.state in ("draining", "stopped"):
                self.should_exit = self.force_exit = True
                engine.drain(0.0)
            else:
                say(f"lastword drains: at most {limits.drain:g} seconds")
                engine.drain()

        async def on_tick(self, counter: int) -> bool:
            """Those in hand are answered, and others told that it stops, until the engine has."""
            return await super().on_tick(counter) or engine.state == "stopped"

        async def shutdown(self, sockets: list[socket] | None = None) -> None:
            await super().shutdown(sockets)
            await engine.stop(0.0)

        def run(self, sockets: list[socket] | None = None) -> None:
            super().run(sockets)
            if isinstance(engine.fault, LastwordError):  # it says what to do
                raise engine.fault
            if engine.fault is not None:  # a supervisor starts it again
                raise RuntimeError("the engine stopped") from engine.fault

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        lifespan="off",  # we start and stop the engine; a second signal would show a traceback of theirs
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        server_header=False,
    )
    return Draining(config)
