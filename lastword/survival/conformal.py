"""Split conformal prediction: from lengths a model really wrote to a bound that holds as often as it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lastword.errors import SettingError
from lastword.survival.distribution import LengthDistribution
from lastword.survival.estimate import Cheapest, Mean, Quantile, Scaled
from lastword.validation import check_list, check_number, check_type

# A plan is rounded up to whole slots, so an answer of n slots fits as soon as the bound is above n - 1.
# Asking for n itself would give nearly every answer a slot it does not need, and cover more than was asked
# for. A 1024th of a slot is more than rounding takes away and less than any answer needs.
_SPARE = 1 - 1 / 1024


def upper_bound(
    lengths: LengthDistribution,
    finished: Sequence[int | float],
    coverage: float = 0.9,
    estimate: Mean | Quantile | Cheapest = Mean(),
) -> Scaled:
    """The estimate, scaled so that a share `coverage` of new answers fits it, rounded up to whole slots.

    Row i of `lengths` is what was predicted for a prompt and `finished[i]` how long its answer came
    out, the end token's slot counted. An answer that was cut has no known length: decode calibration
    prompts on a canvas that leaves room. No labels are needed, only the model's own answers.

    Split conformal prediction: whatever the quality of the prediction, the bound covers a new prompt
    with at least this chance if it is exchangeable with the calibration prompts, so calibrate per
    task family where families differ, and not on the prompts you report.
    """
    check_type("upper_bound", "lengths", lengths, LengthDistribution, "a LengthDistribution")
    check_list("upper_bound", "finished", finished, "a list of lengths, one a row")
    check_type(
        "upper_bound",
        "estimate",
        estimate,
        (Mean, Quantile, Cheapest),
        "Mean(), Quantile(q) or Cheapest(cut)",
    )
    if len(lengths) != len(finished):
        raise SettingError(
            f"{len(lengths)} predictions and {len(finished)} finished lengths were given; they go in pairs"
        )
    return Scaled(conformal_factor(estimate(lengths).tolist(), finished, coverage), estimate)


def conformal_factor(predicted: Sequence[float], finished: Sequence[int | float], coverage: float) -> float:
    """The ceil((n + 1) * coverage)-th smallest of the factors that n answers needed.

    A finished length of infinity is an answer that was cut: longer than any other.

    >>> conformal_factor([8.0] * 9, [6, 7, 7, 8, 8, 9, 10, 11, 17], 0.9)
    2.0001220703125
    """
    for name, given in (("predicted", predicted), ("finished", finished)):
        check_list("conformal_factor", name, given, "a list of numbers")
    if len(finished) != len(predicted):
        raise SettingError(
            f"{len(predicted)} predictions and {len(finished)} finished lengths were given; they go in pairs"
        )
    needed = [required_factor(guess, length) for guess, length in zip(predicted, finished)]
    return conformal_quantile(needed, coverage)


def required_factor(predicted: float, length: int | float) -> float:
    """The least a prediction must be multiplied with for its answer to fit.

    >>> required_factor(8.0, 9)
    1.0001220703125
    """
    check_number("conformal_factor", "predicted", predicted, above=0)
    if not (isinstance(length, float) and length == math.inf):  # an answer that was cut
        check_number("conformal_factor", "finished", length, minimum=1)
        length = math.ceil(length)
    return (length - _SPARE) / predicted


def conformal_quantile(factors: Sequence[float], coverage: float) -> float:
    """The factor that covers a new answer with at least this chance."""
    needed = min_samples(coverage)
    if len(factors) < needed:
        raise SettingError(
            f"{len(factors)} finished answers cannot carry a bound that covers {coverage:.0%}: at least "
            f"{needed} are needed, and 100 or more for one that hardly depends on which; finish more "
            "prompts or ask for less coverage"
        )
    return sorted(factors)[_rank(len(factors), coverage) - 1]


def min_samples(coverage: float) -> int:
    """The fewest finished answers from which a bound of this coverage can be had.

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
