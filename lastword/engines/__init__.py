"""Engines: who answers many prompts, and for whom."""

from lastword.engines.engine import Engine, Predicts, Question, Reply
from lastword.engines.local import Local

__all__ = ["Engine", "Local", "Predicts", "Question", "Reply"]
