"""Survival analysis of the end-token signal: pure tensors, no model."""

from lastword.survival.auto import Auto, Choice
from lastword.survival.calibration import Calibration, Ratios
from lastword.survival.conformal import conformal_factor, samples_needed, upper_bound
from lastword.survival.curve import LengthDistribution
from lastword.survival.estimate import Cheapest, Estimate, Mean, Quantile, Scaled
from lastword.survival.first_boundary import FirstBoundary
from lastword.survival.hazard import token_probabilities
from lastword.survival.plot import plot_lengths, save_lengths, save_rows
from lastword.survival.reading import Boundary, EndedBy, Hazard, Reading, TurnEnd
from lastword.survival.signal import EndSignal

__all__ = [
    "Auto",
    "Boundary",
    "Calibration",
    "Cheapest",
    "Choice",
    "EndSignal",
    "EndedBy",
    "Estimate",
    "FirstBoundary",
    "Hazard",
    "LengthDistribution",
    "Mean",
    "Quantile",
    "Ratios",
    "Reading",
    "Scaled",
    "TurnEnd",
    "conformal_factor",
    "plot_lengths",
    "samples_needed",
    "save_lengths",
    "save_rows",
    "token_probabilities",
    "upper_bound",
]
