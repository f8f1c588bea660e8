from __future__ import annotations

import pickle

import pytest
import torch

from lastword.errors import SettingError
from lastword.survival import LengthDistribution, Mean, Quantile


def uniform():
    return LengthDistribution.from_density(torch.full((2, 4), 0.25, dtype=torch.float64))


def test_mean_is_the_restricted_mean():
    assert Mean()(uniform()).tolist() == pytest.approx([2.5, 2.5])


def test_quantile_is_the_quantile_as_a_float():
    estimate = Quantile(0.75)(uniform())
    assert estimate.tolist() == [3.0, 3.0]
    assert estimate.dtype == torch.float64


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_quantile_outside_its_range_is_refused_when_it_is_made(q):
    with pytest.raises(SettingError, match=str(q)):
        Quantile(q)


@pytest.mark.parametrize("estimate", [Mean(), Quantile(0.9)])
def test_estimates_are_plain_data(estimate):
    assert pickle.loads(pickle.dumps(estimate)) == estimate
    assert hash(estimate) == hash(pickle.loads(pickle.dumps(estimate)))
