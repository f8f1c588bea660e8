"""Which engine, by name: what a command line or a settings file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.engines.base import Engine
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.pool import WorkerPool
from lastword.engines.processes import MAX_WORKERS, ProcessWorkers
from lastword.errors import SettingError
from lastword.validation import check_choice, check_int

LOCAL, PROCESSES, RAY, OPENAI = "local", "processes", "ray", "openai"
NAMES = (LOCAL, PROCESSES, RAY, OPENAI)
# Who takes which setting; the rest would be ignored, and is refused.
TAKEN = {
    "workers": (PROCESSES, RAY, OPENAI),
    "threads": (PROCESSES, RAY),
    "address": (RAY,),
    "base_url": (OPENAI,),
}


@dataclass(frozen=True)
class EngineOptions:
    """An engine's name and its settings; what was left out is the engine's to choose."""

    engine: str = LOCAL
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    base_url: str | None = None

    def __post_init__(self) -> None:
        check_choice("--engine", "engine", self.engine, *NAMES)
        for name, takers in TAKEN.items():
            value = getattr(self, name)
            if value is not None and self.engine not in takers:
                raise SettingError(
                    f"--{name.replace('_', '-')} {value} was given with --engine {self.engine}, which has no "
                    f"use for it; it goes with --engine {' or '.join(takers)}: give that, or leave it out"
                )
        for name in ("workers", "threads"):
            if getattr(self, name) is not None:
                check_int("--engine", name, getattr(self, name), minimum=1, maximum=MAX_WORKERS)
        if self.engine == OPENAI and not self.base_url:
            raise SettingError(
                "--engine openai was given without a server; give --base-url, such as "
                "http://127.0.0.1:8000/v1"
            )

    def open(self, source: ModelSource) -> Engine:
        """The engine, with this model. Workers start when they are needed; close it when done."""
        if self.engine == PROCESSES:
            return WorkerPool(ProcessWorkers(source, self.workers, threads=self.threads))
        if self.engine == RAY:
            from lastword.engines.ray import RayWorkers

            return WorkerPool(RayWorkers(source, self.workers, address=self.address, threads=self.threads))
        if self.engine == OPENAI:
            from lastword.engines.openai import OpenAIEngine

            if source.weights is not None:
                raise SettingError(
                    f"--weights {source.weights} was given with --engine openai, whose weights are the "
                    "server's to choose: leave it out, or give it to the server"
                )
            return OpenAIEngine(str(self.base_url), source.name, requests=self.workers)
        return LocalEngine(source.load())
