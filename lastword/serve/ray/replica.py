"""Replica: one engine and the application around it, in a process that Ray places and starts again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.engines.worker import Source
from lastword.errors import SettingError
from lastword.serve.limits import Limits
from lastword.serve.ray.asked import Asked, answered
from lastword.serve.ray.report import Report
from lastword.serve.ray.scaling import METRIC
from lastword.version import __version__

if TYPE_CHECKING:
    from lastword.serve.api.client import Message


@dataclass(frozen=True)
class Made:
    """What a replica is made of: names and numbers. It loads the weights itself, where it runs."""

    source: Source
    name: str
    limits: Limits
    key: str | None  # by which it knows the one who listens; None: no key is asked for
    version: str = __version__  # of who asks for it


class Replica:
    """The class that Ray Serve deploys."""

    def __init__(self, made: Made) -> None:
        from lastword.serve.api.app import create_app
        from lastword.serve.engine import Engine

        if made.version != __version__:
            raise SettingError(
                f"this machine has lastword {__version__}, and {made.version} was started; install the same "
                "version on every machine of the cluster"
            )
        self._engine = Engine(made.source.load(), made.limits)
        keys = () if made.key is None else (made.key,)
        self._app = create_app(self._engine, name=made.name, limits=made.limits, keys=keys)
        self._asking = 0  # requests in hand
        self._each = 0.0  # columns by request, as far as is known
        self._engine.start()
        while self._engine.state == "starting":
            time.sleep(0.01)
        self.check_health()

    async def answer(self, asked: Asked) -> AsyncGenerator[Message, None]:
        """What the application answers, message by message."""
        self._asking += 1
        messages = answered(self._app, asked)
        try:
            async for message in messages:
                yield message
        finally:
            self._asking -= 1
            await messages.aclose()

    async def metrics(self, to: str) -> bytes:
        """Counters of this replica; `to` is its name, by which the call found it."""
        return self._engine.metrics.text()

    def report(self) -> Report:
        """The work in hand."""
        columns, counts = self._engine.columns_of_work, self._engine.counts()
        if self._asking:
            self._each = columns / self._asking
        return Report(
            columns,
            self._each,
            self._asking,
            counts["working"],
            counts["waiting"],
            self._engine.seconds_of_work,
        )

    def record_routing_stats(self) -> dict[str, Any]:
        """Ray hands it to routers."""
        return self.report().to_data()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray hands it to the policy."""
        return {METRIC: self._engine.seconds_of_work}

    def check_health(self) -> None:
        """Ray starts another one in its place where this raises."""
        if self._engine.state == "stopped":
            raise RuntimeError("the engine stopped") from self._engine.fault
