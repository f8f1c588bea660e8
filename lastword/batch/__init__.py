"""Batch: answer files of prompts with any engine; every prompt has exactly one line in the answers."""

from lastword.batch.progress import BatchProgress, BatchSummary
from lastword.batch.run import Batch

__all__ = ["Batch", "BatchProgress", "BatchSummary"]
