"""RayFleet: replicas that Ray Serve runs, from the first that is ready to the last answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from threading import Thread
from typing import Any

from lastword.errors import LastwordError
from lastword.serve.api.client import Message, Send
from lastword.serve.engine import State
from lastword.serve.errors import Draining, Starting
from lastword.serve.limits import Limits
from lastword.serve.ray import known
from lastword.serve.ray.asked import Asked
from lastword.serve.ray.deploying import Deployed
from lastword.serve.ray.gathered import gathered
from lastword.serve.ray.relay import Relay

log = logging.getLogger("lastword.serve")

LOOK = 0.05  # seconds between two looks at the clock
ASKING = 2.0  # seconds in which a replica must say its counters


class RayFleet:
    """What an engine is to one process: it starts, takes requests, drains and stops."""

    def __init__(self, deployed: Deployed, limits: Limits) -> None:
        self._deployed, self._limits = deployed, limits
        self.fault: BaseException | None = None
        self._handle: Any = None  # None: not ready yet
        self._in_hand = 0
        self._ends: float | None = None  # when those in hand are refused
        self._stopped = False
        self._relay: Relay | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """Ready once replicas were; Ray puts others in the place of those that are lost."""
        if self._stopped:
            return "stopped"
        if self._ends is not None:
            return "draining"
        return "starting" if self._handle is None else "ready"

    def start(self) -> None:
        """Deploy, and watch the clock; from the event loop."""
        self._relay = Relay(self._ask, is_lost)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        Thread(target=self._deploy, name="lastword-deploy", daemon=True).start()

    def drain(self, seconds: float | None = None) -> None:
        """Take no more requests; those in hand have so long (`limits.drain`), then they are refused."""
        self._ends = time.monotonic() + (self._limits.drain if seconds is None else seconds)

    async def stop(self, seconds: float | None = None) -> None:
        """Drain, and wait until that is done."""
        self.drain(seconds)
        if self._watching is not None:
            await self._watching

    def counts(self) -> dict[str, int]:
        """Answers that have a slot and answers that wait, as reported, and replicas that run."""
        reports = known.replicas(self._deployed.application).values()
        return {
            "working": sum(own.working for own in reports),
            "waiting": sum(own.waiting for own in reports),
            "replicas": len(reports),
        }

    async def metrics(self) -> bytes:
        """Counters of all replicas; one that does not say them in time is left out."""
        reports = known.replicas(self._deployed.application)
        told = await asyncio.gather(*(self._told(name) for name in reports))
        texts = {name: text for name, text in zip(reports, told) if text is not None}
        return gathered(texts, reports)

    async def _told(self, name: str) -> bytes | None:
        response = self._handle.metrics.remote(to=name)
        try:
            return await asyncio.wait_for(response, ASKING)
        except Exception as error:
            log.warning("replica %s did not say its counters: %s", name, type(error).__name__)
            return None

    async def answer(self, asked: Asked, send: Send) -> None:
        """Have a replica answer."""
        if self._ends is not None or self._stopped:
            raise Draining("the server is stopping; ask another one, or this one again later")
        if self._handle is None or self._relay is None:
            raise Starting("no replica is ready yet; ask again in a while")
        self._in_hand += 1
        try:
            await self._relay(asked, send)
        finally:
            self._in_hand -= 1

    async def _ask(self, asked: Asked) -> AsyncIterator[Message]:
        messages = self._handle.options(stream=True).answer.remote(asked)
        ended = False
        try:
            async for message in messages:
                yield message
            ended = True
        finally:
            if not ended:
                messages.cancel()  # whoever asked has left, or the replica is gone

    def _deploy(self) -> None:
        try:
            self._handle = self._deployed.deploy(lambda: self._ends is not None)
        except LastwordError as wrong:
            self.fault = wrong
        except Exception as wrong:
            log.exception("the replicas could not be started")
            self.fault = wrong
        if self.fault is not None:
            self.drain(0.0)

    async def _watch(self) -> None:
        """Until all is over: then those that are left are refused."""
        while self._ends is None or (self._in_hand and time.monotonic() < self._ends):
            await asyncio.sleep(LOOK)
        assert self._relay is not None
        self._relay.over.set()
        while self._in_hand and time.monotonic() < self._ends + self._limits.reading:
            await asyncio.sleep(LOOK)
        self._stopped = True


def is_lost(error: BaseException) -> bool:
    """Did the replica, or what it had sent, vanish? What its code raised is something else."""
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError

    return isinstance(error, RayError) and not isinstance(error, (RayTaskError, TaskCancelledError))
