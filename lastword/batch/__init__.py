"""Batch inference on a file of prompts with any engine; every prompt gets exactly one line of output."""

from lastword.batch.run import Batch, BatchProgress, BatchSummary

__all__ = ["Batch", "BatchProgress", "BatchSummary"]
