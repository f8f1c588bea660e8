"""Engines, which answer many requests: in this process, in worker processes, on a Ray cluster, or on a server."""

from __future__ import annotations

from lastword.engines.base import Engine, GenerationReply, GenerationRequest
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.openai import OpenAIEngine
from lastword.engines.pool import WorkerPool
from lastword.engines.workers import ProcessWorkers, RayWorkers

__all__ = ["Engine", "GenerationReply", "GenerationRequest", "LocalEngine"]
__all__ += ["ModelSource", "OpenAIEngine", "ProcessWorkers", "RayWorkers", "WorkerPool"]
