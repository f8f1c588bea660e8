from __future__ import annotations

import pickle

import pytest
import torch

from lastword.errors import SettingError
from lastword.survival.distribution import Cheapest, LengthDistribution, Mean, Quantile, Scaled


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


@pytest.mark.parametrize("estimate", [Mean(), Quantile(0.9), Cheapest(50.0), Scaled(1.2, Quantile(0.5))])
def test_estimates_are_plain_data(estimate):
    assert pickle.loads(pickle.dumps(estimate)) == estimate
    assert hash(estimate) == hash(pickle.loads(pickle.dumps(estimate)))


def test_prices_of_a_slot_make_a_quantile():
    assert Quantile.from_costs(missing=1.0, extra=1.0) == Quantile(0.5)
    assert Quantile.from_costs(missing=19.0, extra=1.0) == Quantile(0.95)


def test_a_from_costs_quantile_is_the_cheapest_length():
    lengths = LengthDistribution.from_hazard(torch.full((1, 400), 0.05, dtype=torch.float64))
    slots = torch.arange(1, 401).double()

    def cost(n):
        off = slots - n
        return (torch.where(off > 0, 4 * off, -off) * lengths.density[0]).sum().item()

    best = min(range(1, 401), key=cost)
    assert Quantile.from_costs(missing=4.0, extra=1.0)(lengths).item() == best


def test_cheapest_weighs_slots_against_the_chance_to_be_cut():
    # Lengths 1 or 4 with even chance: 4 slots cost 3 more than 1 and save half a cut.
    lengths = LengthDistribution.from_density(torch.tensor([[0.5, 0.0, 0.0, 0.5]]))
    assert Cheapest(5.9)(lengths).item() == 1
    assert Cheapest(6.1)(lengths).item() == 4


def test_cheapest_does_not_follow_a_few_percent_far_away():
    near = torch.zeros(1, 100, dtype=torch.float64)
    near[0, 9], near[0, 99] = 0.98, 0.02
    lengths = LengthDistribution.from_density(near)
    assert Cheapest(300.0)(lengths).item() == 10
    assert Quantile(0.99)(lengths).item() == 100


def test_scaled_multiplies():
    assert Scaled(1.5, Quantile(0.5))(uniform()).tolist() == [3.0, 3.0]


def test_a_margin_comes_after_the_factor():
    assert Scaled(2.0, Quantile(0.5), margin=3)(uniform()).tolist() == [7.0, 7.0]
    with pytest.raises(SettingError, match=r"Scaled\(margin=-1\)"):
        Scaled(margin=-1)


@pytest.mark.parametrize("make", [Cheapest, Scaled])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_prices_and_factors_are_positive_numbers(make, value):
    with pytest.raises(SettingError, match=make.__name__):
        make(value)


@pytest.mark.parametrize("prices", [(0.0, 1.0), (1.0, -1.0)])
def test_prices_of_a_slot_are_positive(prices):
    with pytest.raises(SettingError, match=r"Quantile\.from_costs"):
        Quantile.from_costs(*prices)
