"""Front: all replicas as one server, at one address.

FastAPI reads the types of routes as this file is run, so it is imported only by who serves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from lastword.serve.api.app import METRICS_TYPE, Application, add_failures
from lastword.serve.api.body import content
from lastword.serve.api.client import Gone, unless_gone
from lastword.serve.api.keys import Keys
from lastword.serve.api.page import page
from lastword.serve.api.replies import HealthReply
from lastword.serve.engine import State
from lastword.serve.limits import Limits
from lastword.serve.ray.asked import Asked
from lastword.version import __version__

OPEN = {"/openapi.json"}  # beside / and /health: what is answered to anybody
HELD = {b"authorization", b"host", b"connection", b"content-length", b"transfer-encoding"}


@runtime_checkable
class Fleet(Protocol):
    """All replicas, whoever runs them."""

    @property
    def state(self) -> State:
        """Where they stand together."""

    def counts(self) -> dict[str, int]:
        """Answers that have a slot, answers that wait, and replicas."""

    async def metrics(self) -> bytes:
        """Counters of all."""

    async def answer(self, asked: Asked, send: Send) -> None:
        """Have one of them answer."""


def create_front(
    fleet: Fleet,
    *,
    limits: Limits,
    keys: Collection[str] = (),
    inner_key: str | None = None,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application that listens: it reads requests within limits, asks for the key, and hands them on.

    Replicas never see the keys of clients, only `inner_key`.
    """
    lock = Keys(keys)
    app = Application(
        title="lastword",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # a replica's
        redirect_slashes=False,
    )
    app.reading, app.hosts = limits.reading, hosts

    @app.get("/health")
    async def health() -> Response:
        state = fleet.state
        reply = HealthReply(
            ready=state == "ready",
            draining=state == "draining",
            state=state,
            counts=fleet.counts(),
        )
        return JSONResponse(reply.model_dump(), 200 if reply.ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        lock.check(request.headers.get("authorization"))
        return Response(await fleet.metrics(), media_type=METRICS_TYPE)

    @app.get("/")
    async def home() -> Response:
        return HTMLResponse(page(limits.recipe))

    async def hand_on(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = request.url.path
        headers = [own for own in scope["headers"] if own[0] not in HELD]
        if path not in OPEN:
            lock.check(request.headers.get("authorization"))
        if inner_key is not None:
            headers.append((b"authorization", f"Bearer {inner_key}".encode()))
        asked = Asked(
            request.method,
            path,
            scope["query_string"],
            tuple(headers),
            await content(request, limits),
        )
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await unless_gone(receive, fleet.answer(asked, sending))
        except Gone:
            if not begun:
                raise

    app.mount("/", hand_on)
    add_failures(app)
    return app
