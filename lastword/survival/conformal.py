"""Split conformal prediction: bounds on answer lengths, from the lengths of a model's finished answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lastword.errors import SettingError
from lastword.survival.distribution import Cheapest, LengthDistribution, Mean, Quantile, Scaled
from lastword.validation import check_list, check_number, check_type

# A plan is rounded up to whole slots, so an answer of n slots fits as soon as the bound exceeds n - 1. A bound of n
# itself would give nearly every answer an extra slot and cover more than requested. A 1024th of a slot is more than
# any rounding error, and too little to matter.
_SPARE = 1 - 1 / 1024


def upper_bound(
    lengths: LengthDistribution,
    finished: Sequence[int | float],
    coverage: float = 0.9,
    estimate: Mean | Quantile | Cheapest = Mean(),
) -> Scaled:
    """Return the estimate, scaled so that a share `coverage` of new answers fits, rounded up to whole slots.

    Row i of `lengths` is the prediction for a prompt and `finished[i]` the length of its answer, with the end token. A
    truncated answer has no known length, so calibration prompts need a canvas that is long enough. They need no labels.

    However good the prediction is, the bound covers the answer to a new prompt with at least this probability if that
    prompt is exchangeable with the calibration prompts. Calibrate each task family separately if families differ, and
    not on the prompts of a reported evaluation.
    """
    check_type("upper_bound", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    check_list("upper_bound", "finished", finished, "a list of lengths, one per row")
    expected = "Mean(), Quantile(q) or Cheapest(truncation_cost)"
    check_type("upper_bound", "estimate", estimate, (Mean, Quantile, Cheapest), expected)
    return Scaled(conformal_factor(estimate(lengths).tolist(), finished, coverage), estimate)


def conformal_factor(predicted: Sequence[float], finished: Sequence[int | float], coverage: float) -> float:
    """Return the ceil((n + 1) * coverage)-th smallest of the factors that n answers needed.

    A finished length of infinity stands for a truncated answer, which counts as longer than any other.

    >>> conformal_factor([8.0] * 9, [6, 7, 7, 8, 8, 9, 10, 11, 17], 0.9)
    2.0001220703125
    """
    for name, values in (("predicted", predicted), ("finished", finished)):
        check_list("conformal_factor", name, values, "a list of numbers")
    if len(predicted) != len(finished):
        raise SettingError(
            f"{len(predicted)} predictions and {len(finished)} finished lengths were given; give one length per "
            "prediction"
        )
    return conformal_quantile([required_factor(*pair) for pair in zip(predicted, finished)], coverage)


def required_factor(predicted: float, length: int | float) -> float:
    """Return the smallest factor by which a prediction must be multiplied for its answer to fit.

    >>> required_factor(8.0, 9)
    1.0001220703125
    """
    check_number("conformal_factor", "predicted", predicted, above=0)
    if not (isinstance(length, float) and length == math.inf):  # not a truncated answer
        check_number("conformal_factor", "finished", length, minimum=1)
        length = math.ceil(length)
    return (length - _SPARE) / predicted


def conformal_quantile(factors: Sequence[float], coverage: float) -> float:
    """Return the factor that makes a prediction cover a new answer with probability `coverage` or more."""
    needed = min_samples(coverage)
    if len(factors) < needed:
        raise SettingError(
            f"{len(factors)} finished answers do not suffice for a bound that covers {coverage:.0%}: at least "
            f"{needed} are needed, and 100 or more for one that depends little on the choice of prompts; finish more "
            "prompts or lower the coverage"
        )
    return sorted(factors)[_rank(len(factors), coverage) - 1]


def min_samples(coverage: float) -> int:
    """Return the smallest number of finished answers that suffices for a bound with this coverage.

    >>> min_samples(0.9), min_samples(0.95)
    (9, 19)
    """
    check_number("upper_bound", "coverage", coverage, above=0, below=1)
    needed = max(1, math.floor(coverage / (1 - coverage)) - 1)
    while _rank(needed, coverage) > needed:
        needed += 1
    return needed


def _rank(samples: int, coverage: float) -> int:
    # 1e-9: (19 + 1) * 0.95 must not become 20 because 0.95 has no exact float.
    return max(1, math.ceil((samples + 1) * coverage - 1e-9))
