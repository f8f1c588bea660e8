"""Engines: who answers many prompts, and for whom."""

from lastword.engines.base import Engine, GenerationReply, GenerationRequest, LengthPredictor
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.pool import WorkerPool
from lastword.engines.processes import ProcessWorkers

__all__ = [
    "Engine",
    "GenerationReply",
    "GenerationRequest",
    "LengthPredictor",
    "LocalEngine",
    "ModelSource",
    "ProcessWorkers",
    "WorkerPool",
]  # fmt: skip
