"""The application: routes of the OpenAI API and our own, over an engine that somebody else starts and stops.

FastAPI reads the types of routes as this file is run, so it is imported only by who serves.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from lastword.engines.surroundings import dtype_of, surroundings
from lastword.errors import LastwordError
from lastword.models.weights import fingerprint
from lastword.serve.api import replies
from lastword.serve.api.answering import Answering
from lastword.serve.api.body import read
from lastword.serve.api.client import Gone, patient
from lastword.serve.api.describing import PLAIN, STREAMED, described, refusals, takes
from lastword.serve.api.failure import failure
from lastword.serve.api.invalid import Invalid, NoSuchThing
from lastword.serve.api.keys import Keys
from lastword.serve.api.page import page
from lastword.serve.api.schema import ChatRequest, CompletionRequest, LengthsRequest
from lastword.serve.engine import Engine
from lastword.serve.limits import Limits
from lastword.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
READING = refusals(400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)
LOOKING = refusals(401, 405, 500)
CLIENT_LEFT = 499  # nobody reads it; access logs show it


class Application(FastAPI):
    """FastAPI's, whose every answer must be taken in time, and which may heed by what name it is called."""

    reading: float
    hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = super().__call__
        if scope["type"] == "http" and self.hosts:
            called = Headers(scope=scope).get("host", "")
            if re.sub(r":\d*$", "", called) not in self.hosts:
                status, reply, headers = failure(
                    Invalid(f"this server is not called {called!r:.80}; ask it by its own address")
                )
                answer = JSONResponse(reply.model_dump(), status, headers)
        await answer(scope, receive, patient(send, self.reading))


def create_app(
    engine: Engine,
    *,
    name: str,
    limits: Limits | None = None,
    keys: Collection[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application that serves an engine's model under a name, to who has a key where there are any.

    With `hosts` it answers only requests that call it by one of these: a page of another site that lets its
    own name point to this machine would else be answered like one of ours.
    """
    limits, lock = limits or engine.limits, Keys(keys)
    described_model = replies.ModelReply(
        id=name,
        created=int(time.time()),
        lastword=replies.ModelLimits(
            chat=engine.tokenizer.chat_template is not None,
            slots=limits.horizon or engine.model.default_max_new_tokens,
            positions=engine.model.max_seq_len,
            weights=fingerprint(engine.model),
            dtype=dtype_of(engine.model),
            hardware=surroundings(engine.model)["hardware"],
            recipe=engine.recipe.label(),
        ),
    )
    app = Application(
        title="lastword",
        version=__version__,
        docs_url=None,  # theirs load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.reading, app.hosts = limits.reading, hosts
    answering = Answering(engine, name, limits)

    async def keyed(request: Request) -> None:
        lock.check(request.headers.get("authorization"))

    def served(model: str | None) -> None:
        if model not in (None, name):
            raise NoSuchThing(
                f"there is no model {model!r:.80} here; this server has {name!r}",
                "model",
                "model_not_found",
            )

    locked = APIRouter(dependencies=[Depends(keyed)])

    @locked.post(
        "/v1/chat/completions",
        response_model=replies.ChatReply,
        responses=STREAMED | READING,
        openapi_extra=takes(ChatRequest),
    )
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        asking = await read(request, ChatRequest, limits)
        served(asking.model)
        return await answering.answer(request.receive, asking)

    @locked.post(
        "/v1/completions",
        response_model=replies.TextReply,
        responses=STREAMED | READING,
        openapi_extra=takes(CompletionRequest),
    )
    async def complete(request: Request) -> Response:
        """Answer a prompt, or several."""
        asking = await read(request, CompletionRequest, limits)
        served(asking.model)
        return await answering.answer(request.receive, asking)

    @locked.post(
        "/v1/lengths",
        response_model=replies.LengthsReply,
        responses=READING,
        openapi_extra=takes(LengthsRequest),
    )
    async def lengths(request: Request) -> Response:
        """Say how long the answer will be, without writing it."""
        asking = await read(request, LengthsRequest, limits)
        served(asking.model)
        return await answering.lengths(request.receive, asking)

    @locked.get("/v1/models", response_model=replies.ModelsReply, responses=LOOKING)
    async def models() -> Response:
        """The model that is served."""
        return _json(replies.ModelsReply(data=[described_model]))

    @locked.get(
        "/v1/models/{model:path}",
        response_model=replies.ModelReply,
        responses={**LOOKING, **refusals(404)},
    )
    async def model(model: str) -> Response:
        """The model of this name."""
        served(model)
        return _json(described_model)

    @locked.get("/metrics", response_class=Response, responses=PLAIN | LOOKING)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(engine.metrics.text(), media_type=METRICS_TYPE)

    app.include_router(locked)

    @app.get(
        "/health",
        response_model=replies.HealthReply,
        responses={503: {"model": replies.HealthReply}, **refusals(405, 500)},
    )
    async def health() -> Response:
        """Is the server alive, and does it take requests? 503 where it does not."""
        state = engine.state
        reply = replies.HealthReply(
            ready=state == "ready",
            draining=state == "draining",
            state=state,
            counts=engine.counts(),
        )
        return _json(reply, 200 if reply.ready else 503)

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        """The page."""
        return HTMLResponse(page(limits.recipe))

    add_failures(app)
    app.openapi = described(app, name, keyed=bool(lock))  # type: ignore[method-assign]
    return app


def _json(reply: BaseModel, status: int = 200) -> JSONResponse:
    return JSONResponse(reply.model_dump(), status)


def add_failures(app: FastAPI) -> None:
    """Whatever goes wrong is told in one shape."""

    async def failed(request: Request, error: Exception) -> Response:
        status, reply, headers = failure(error)
        return JSONResponse(reply.model_dump(), status, headers)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {
            404: f"there is nothing at {request.url.path!r:.80}",
            405: f"{request.method} is not a method of {request.url.path!r:.80}",
        }
        told = Invalid(words.get(error.status_code, str(error.detail)))
        told.code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, told.code)
        reply = failure(told).reply
        return JSONResponse(reply.model_dump(), error.status_code, dict(error.headers or {}))

    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(LastwordError, failed)
    app.add_exception_handler(Exception, failed)  # logged by the server in front
    for gone in (Gone, ClientDisconnect):
        app.add_exception_handler(gone, left)
