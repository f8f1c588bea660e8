from __future__ import annotations

import math
import random

import pytest
import torch

from lastword.errors import SettingError
from lastword.survival.conformal import conformal_factor, min_samples, required_factor, upper_bound
from lastword.survival.distribution import LengthDistribution, Mean, Quantile, Scaled


def even(rows, slots=4):
    return LengthDistribution.from_density(torch.full((rows, slots), 1 / slots).double())


@pytest.mark.parametrize(("coverage", "least"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_too_few_answers_are_refused_with_the_number_needed(coverage, least):
    assert min_samples(coverage) == least
    conformal_factor([1.0] * least, [1.0] * least, coverage)
    if least > 1:
        with pytest.raises(SettingError, match=f"at least {least} are needed"):
            conformal_factor([1.0] * (least - 1), [1.0] * (least - 1), coverage)


def test_the_factor_is_the_one_of_its_rank():
    finished = [float(n) for n in range(1, 20)]
    random.Random(0).shuffle(finished)
    for coverage, rank in ((0.95, 19), (0.9, 18), (0.5, 10)):
        factor = conformal_factor([10.0] * 19, finished, coverage)
        assert math.ceil(factor * 10.0) == rank  # its own answer fits, and with no slot to spare
        assert factor == required_factor(10.0, rank)


@pytest.mark.parametrize("predicted", [0.7, 1.0, 3.0, 61.3, 200.0])
@pytest.mark.parametrize("length", [1, 2, 59, 60, 1024])
def test_a_needed_factor_gives_its_answer_room_and_no_slot_more(predicted, length):
    factor = required_factor(predicted, length)
    assert math.ceil(factor * predicted) == length
    in_singles = torch.tensor(predicted) * factor  # estimates may come in 32 bits
    assert math.ceil(in_singles) == length


def test_whole_slots_do_not_make_a_bound_cover_more_than_it_says():
    """Lengths of a few slots: a whole slot to spare would cover a tenth of all answers more."""
    rng = random.Random(2)

    def pair():
        mean = rng.uniform(8, 12)
        return mean, max(1, round(rng.gauss(mean, 2)))

    covered = []
    for _ in range(300):
        predicted, finished = zip(*(pair() for _ in range(99)))
        factor = conformal_factor(predicted, finished, 0.9)
        covered += [length <= math.ceil(factor * guess) for guess, length in (pair() for _ in range(60))]
    assert 0.89 <= sum(covered) / len(covered) <= 0.92


@pytest.mark.parametrize(("coverage", "distortion"), [(0.8, 0.55), (0.9, 1.0), (0.95, 2.0)])
def test_the_bound_covers_new_answers_as_often_as_it_says(coverage, distortion):
    """Averaged over calibrations, whatever the predictor's own scale."""
    rng = random.Random(1)

    def pair():
        mean = rng.uniform(30, 300)
        return mean * distortion, max(1, round(mean * rng.lognormvariate(0, 0.3)))

    covered = []
    for _ in range(300):
        predicted, finished = zip(*(pair() for _ in range(60)))
        factor = conformal_factor(predicted, finished, coverage)
        covered += [length <= math.ceil(factor * guess) for guess, length in (pair() for _ in range(60))]
    share = sum(covered) / len(covered)
    assert coverage - 0.01 <= share <= coverage + 0.03  # at most 1 / 61 above, and noise


def test_an_upper_bound_is_an_estimate_like_any_other():
    bound = upper_bound(even(9), [2, 3, 3, 2, 1, 2, 3, 2, 5], 0.9)
    assert bound == Scaled(required_factor(2.5, 5), Mean())
    assert [math.ceil(slots) for slots in bound(even(2)).tolist()] == [5, 5]
    median = upper_bound(even(9), [4.0] * 9, 0.9, Quantile(0.5))
    assert median == Scaled(required_factor(2.0, 4), Quantile(0.5))


def test_a_tiny_coverage_asks_for_the_smallest_factor():
    assert conformal_factor([1.0] * 3, [3.0, 1.0, 2.0], 1e-12) == required_factor(1.0, 1)


@pytest.mark.parametrize(
    ("predicted", "finished"),
    [
        ([0.0, 1.0], [1.0, 1.0]),
        ([1.0, float("nan")], [1.0, 1.0]),
        ([1.0, 1.0], [float("nan"), 1.0]),
        ([1.0, 1.0], [0, 1]),
        ([1.0, 1.0], [1.0]),
    ],
)
def test_what_is_no_length_is_refused(predicted, finished):
    with pytest.raises(SettingError):
        conformal_factor(predicted, finished, 0.5)


def test_predictions_and_lengths_go_in_pairs():
    with pytest.raises(SettingError, match="9 predictions and 8 finished"):
        upper_bound(even(9), [1.0] * 8)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_a_coverage_that_is_no_share_is_refused(coverage):
    with pytest.raises(SettingError, match="coverage"):
        upper_bound(even(9), [1.0] * 9, coverage)
