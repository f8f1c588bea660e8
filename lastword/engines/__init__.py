"""Engines: who answers many prompts, and for whom."""

from lastword.engines.engine import Engine, Foresees, Question, Reply
from lastword.engines.local import Local

__all__ = ["Engine", "Foresees", "Local", "Question", "Reply"]
