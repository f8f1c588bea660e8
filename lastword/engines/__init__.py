"""Engines: answer many requests in this process, in others, on a Ray cluster, or on a server."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.engines.base import Engine, GenerationReply, GenerationRequest
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.openai import OpenAIEngine
from lastword.engines.pool import WorkerPool
from lastword.engines.workers import ProcessWorkers, RayWorkers
from lastword.errors import SettingError
from lastword.validation import check_choice

__all__ = ["Engine", "EngineOptions", "GenerationReply", "GenerationRequest", "LocalEngine"]
__all__ += ["ModelSource", "OpenAIEngine", "ProcessWorkers", "RayWorkers", "WorkerPool"]

LOCAL, PROCESSES, RAY, OPENAI = "local", "processes", "ray", "openai"
# The engines that an option applies to; with others it is rejected.
SUPPORTED = {"workers": (PROCESSES, RAY, OPENAI), "threads": (PROCESSES, RAY), "address": (RAY,), "base_url": (OPENAI,)}


@dataclass(frozen=True)
class EngineOptions:
    """The name of an engine with its options; None leaves a choice to the engine."""

    engine: str = LOCAL
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    base_url: str | None = None

    def __post_init__(self) -> None:
        check_choice("--engine", "engine", self.engine, LOCAL, PROCESSES, RAY, OPENAI)
        for name, engines in SUPPORTED.items():
            value = getattr(self, name)
            if value is not None and self.engine not in engines:
                raise SettingError(
                    f"--{name.replace('_', '-')} {value} was given with --engine {self.engine}, which does "
                    f"not use it; give --engine {' or '.join(engines)}, or leave it out"
                )
        if self.engine == OPENAI and not self.base_url:
            raise SettingError("--engine openai needs --base-url, such as --base-url http://127.0.0.1:8000/v1")

    def open(self, source: ModelSource) -> Engine:
        """Return the engine for a model. Workers start when they are needed; close it in the end."""
        if self.engine == PROCESSES:
            return WorkerPool(ProcessWorkers(source, self.workers, threads=self.threads))
        if self.engine == RAY:
            return WorkerPool(RayWorkers(source, self.workers, address=self.address, threads=self.threads))
        if self.engine == OPENAI:
            if source.weights is not None:
                raise SettingError(
                    f"--weights {source.weights} was given with --engine openai, whose server has loaded "
                    "its weights: leave it out, or give it to the server"
                )
            return OpenAIEngine(str(self.base_url), source.name, requests=self.workers)
        return LocalEngine(source.load())
