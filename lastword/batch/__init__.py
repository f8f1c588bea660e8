"""Batch: answers to a file of prompts, by any engine, each written exactly once."""

from lastword.batch.outcome import BatchProgress, BatchSummary
from lastword.batch.run import run

__all__ = ["BatchProgress", "BatchSummary", "run"]
