"""Engines: who answers many prompts, and for whom."""

from lastword.engines.engine import Engine, Predicts, Question, Reply
from lastword.engines.local import Local
from lastword.engines.pool import Pool
from lastword.engines.processes import Processes
from lastword.engines.worker import Source

__all__ = [
    "Engine",
    "Local",
    "Pool",
    "Predicts",
    "Processes",
    "Question",
    "Reply",
    "Source",
]  # fmt: skip
