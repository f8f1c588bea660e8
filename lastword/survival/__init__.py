"""Survival analysis of the end-token signal: pure tensors, no model."""

from lastword.survival.curve import LengthDistribution
from lastword.survival.estimate import Estimate, Mean, Quantile
from lastword.survival.hazard import token_probabilities
from lastword.survival.plot import plot_lengths, save_lengths, save_rows

__all__ = [
    "Estimate",
    "LengthDistribution",
    "Mean",
    "Quantile",
    "plot_lengths",
    "save_lengths",
    "save_rows",
    "token_probabilities",
]
