"""Survival analysis of the end-token signal: pure tensors, independent of any model."""
