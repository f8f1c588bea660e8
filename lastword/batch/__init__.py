"""Batch: answers to a file of prompts, by any engine, each written exactly once."""

from lastword.batch.outcome import Outcome, State
from lastword.batch.run import run

__all__ = ["Outcome", "State", "run"]
