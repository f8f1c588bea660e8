"""Running: the server as a process, from its first probe to its last answer."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE
from socket import SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket
from types import FrameType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lastword.errors import ExtraError, LastwordError, SettingError
from lastword.extras import install
from lastword.models.base import MaskPredictor
from lastword.serve.engine import Engine, State
from lastword.serve.limits import Limits
from lastword.serve.schedule import Schedule

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Server

log = logging.getLogger("lastword.serve")

CONNECTIONS = 1000  # at once; a process may have 1,024 files open
LAST_WORDS = 5  # seconds to send what was said last


@runtime_checkable
class Serving(Protocol):
    """What starts, drains and stops with the process that listens: an engine, or all replicas."""

    fault: BaseException | None

    @property
    def state(self) -> State:
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
    limits: Limits = Limits(),
    keys: Collection[str] = (),
    without_key: bool = False,
    say: Callable[[str], None] = log.info,
) -> None:
    """Serve a model until a signal comes: the first drains, a second one stops.

    Whoever reaches the address may ask: one that others reach needs keys, or the word that it is meant.
    """
    check_locked(host, keys, without_key)
    server(model, name=name, host=host, port=port, limits=limits, keys=keys, say=say).run()


def check_locked(host: str, keys: Collection[str], without_key: bool) -> None:
    """Refuse an address that others reach, where no key was set and nobody said that it is meant."""
    if not keys and not without_key and not is_loopback(host):
        raise SettingError(
            f"the address {host} can be reached from other machines and no key was set: give one "
            "(LASTWORD_API_KEY, or --key-file FILE), or say --without-key"
        )


def check_free(host: str, port: int) -> None:
    """Refuse an address where another process listens, or where this one may not."""
    try:
        for family, kind, protocol, _, address in getaddrinfo(host, port, type=SOCK_STREAM):
            with socket(family, kind, protocol) as tried:
                tried.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as refused:
        if refused.errno not in (EADDRINUSE, EACCES):
            return  # some addresses of a name may be missing; the server says if all of them are
        raise SettingError(
            f"port {port} of {host} cannot be listened at ({refused.strerror}); give another, such as "
            f"--port {port + 1 if 1024 <= port < 65535 else 8000}, or --port 0 for any that is free"
        ) from refused


def server(
    model: MaskPredictor,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits = Limits(),
    keys: Collection[str] = (),
    schedule: Schedule = Schedule(),
    say: Callable[[str], None] = log.info,
) -> Server:
    """A uvicorn server of a model, which starts and stops the engine with itself."""
    with extra_needed():
        from lastword.serve.api.app import create_app
    engine = Engine(model, limits, schedule)
    hosts = own_names(host, keys)
    app = create_app(engine, name=name, limits=limits, keys=keys, hosts=hosts)
    return listening(app, engine, name=name, host=host, port=port, limits=limits, say=say)


def own_names(host: str, keys: Collection[str]) -> set[str]:
    """By what names a server may be called that others do not reach and that asks for no key; else any."""
    return {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) and not keys else set()


@contextmanager
def extra_needed() -> Iterator[None]:
    """Say what to install where something is missing."""
    try:
        yield
    except ImportError as missing:
        raise ExtraError(
            f"serving needs {missing.name}, which is not installed: {install('serve')}"
        ) from missing


def listening(
    app: FastAPI,
    engine: Serving,
    *,
    name: str,
    host: str,
    port: int,
    limits: Limits,
    say: Callable[[str], None],
) -> Server:
    """A uvicorn server that starts and stops an engine with itself, and says where it listens."""
    with extra_needed():
        import uvicorn

    class Draining(uvicorn.Server):
        """It says where it listens, and drains before it leaves."""

        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)  # leaves the process where it cannot listen
            engine.start()
            for served in self.servers:
                for listening in served.sockets:
                    at, number = listening.getsockname()[:2]
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
        timeout_graceful_shutdown=LAST_WORDS,
        limit_concurrency=CONNECTIONS,
        server_header=False,
    )
    return Draining(config)


def is_loopback(host: str) -> bool:
    """Is this an address that only this machine reaches?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
