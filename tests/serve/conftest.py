"""A server in a thread, for everybody who wants to talk to one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


@contextlib.contextmanager
def serving(model: Any, *, name="toy", keys=(), limits=None, send_buffer=None) -> Iterator[Any]:
    """A live server on a free port of 127.0.0.1: its `url`, `port`, `engine` and `name`."""
    import uvicorn

    from lastword.serve.app import create_app
    from lastword.serve.engine import Engine
    from lastword.serve.settings import ServerSettings

    limits = limits or ServerSettings(drain=5.0)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listening.bind(("127.0.0.1", 0))
    engine = Engine(model, limits)
    app = create_app(engine, name=name, limits=limits, keys=keys)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
    )

    async def run() -> None:
        engine.start()
        await server.serve(sockets=[listening])
        await engine.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not (server.started and engine.state == "ready") and time.monotonic() < until:
        time.sleep(0.01)
    assert server.started
    assert engine.state == "ready"
    port = listening.getsockname()[1]
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", port=port, engine=engine, name=name, app=app)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def live():
    """`live(model, keys=..., limits=...)` starts a server, which stops at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(serving(*args, **options))


@pytest.fixture(scope="session")
def live_toy(toy):
    """One server of the toy model for all tests that do not change it."""
    with serving(toy) as server:
        yield server


@pytest.fixture(scope="session")
def instruct():
    import lastword

    return lastword.load("tiny-llada-instruct", device="cpu")


@pytest.fixture(scope="session")
def live_instruct(instruct):
    """One server of a model with a chat template."""
    with serving(instruct, name="tiny-llada-instruct") as server:
        yield server


@pytest.fixture
def asgi(toy):
    """`async with asgi(model, ...) as client`: the application without a network; the engine runs."""
    import httpx

    from lastword.serve.app import create_app
    from lastword.serve.engine import Engine
    from lastword.serve.settings import ServerSettings

    @contextlib.asynccontextmanager
    async def client(model=toy, *, name="toy", keys=(), limits=None, headers=None, raising=True):
        limits = limits or ServerSettings(drain=5.0)
        engine = Engine(model, limits)
        engine.start()
        app = create_app(engine, name=name, limits=limits, keys=keys)
        transport = httpx.ASGITransport(app, raise_app_exceptions=raising)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as opened:
            opened.engine = engine
            yield opened
        await engine.stop()

    return client
