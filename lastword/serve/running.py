"""Running: the server as a process, from its first probe to its last answer."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Collection
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING

from lastword.errors import ExtraError, SettingError
from lastword.models.predictor import MaskPredictor
from lastword.serve.engine import Engine
from lastword.serve.limits import Limits
from lastword.serve.schedule import Schedule

if TYPE_CHECKING:
    from uvicorn import Server

log = logging.getLogger("lastword.serve")

CONNECTIONS = 1000  # at once; a process may have 1,024 files open
LAST_WORDS = 5  # seconds to send what was said last


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
    if not keys and not without_key and not is_loopback(host):
        raise SettingError(
            f"the address {host} can be reached from other machines and no key was set: give one "
            "(LASTWORD_API_KEY, or --key-file FILE), or say --without-key"
        )
    server(model, name=name, host=host, port=port, limits=limits, keys=keys, say=say).run()


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
    """A uvicorn server that starts and stops the engine with itself, and says where it listens."""
    try:
        import uvicorn

        from lastword.serve.api.app import create_app
    except ImportError as missing:
        raise ExtraError(
            f"serving needs {missing.name}, which is not installed: pip install 'lastword[serve]' (from a "
            "clone: pip install '.[serve]')"
        ) from missing
    engine = Engine(model, limits, schedule)

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
            if engine.fault is not None:  # a supervisor starts it again
                raise RuntimeError("the engine stopped") from engine.fault

    hosts = {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) and not keys else set()
    config = uvicorn.Config(
        create_app(engine, name=name, limits=limits, keys=keys, hosts=hosts),
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
