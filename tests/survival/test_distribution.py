from __future__ import annotations

import pytest
import torch

from lastword.errors import LastwordError, NumericError, SettingError, WrongTypeError
from lastword.survival.distribution import Cheapest, LengthDistribution, Mean, Quantile, Scaled
from lastword.survival.interpretation import EndedBy, Hazard, token_probabilities

FROM = {
    "hazard": LengthDistribution.from_hazard,
    "cumulative": LengthDistribution.from_cumulative,
    "density": LengthDistribution.from_density,
}


def hazard(*values):
    return LengthDistribution.from_hazard(torch.tensor([values], dtype=torch.float64))


def test_three_slots_by_hand():
    lengths = hazard(0.5, 0.25, 0.2)
    assert lengths.survival[0].tolist() == pytest.approx([1, 0.5, 0.375, 0.3])
    assert lengths.density[0].tolist() == pytest.approx([0.5, 0.125, 0.075])
    assert lengths.cumulative[0].tolist() == pytest.approx([0.5, 0.625, 0.7])
    assert lengths.tail.item() == pytest.approx(0.3)
    assert lengths.mean.item() == pytest.approx(1.875)
    assert lengths.slots == 3


@pytest.mark.parametrize("chance", [0.5, 0.05, 1e-4])
@pytest.mark.parametrize("slots", [1, 7, 1024])
def test_geometric_hazard_has_its_closed_forms(chance, slots):
    lengths = LengthDistribution.from_hazard(torch.full((1, slots), chance, dtype=torch.float64))
    left = (1 - chance) ** slots
    assert lengths.tail.item() == pytest.approx(left, rel=1e-12)
    assert lengths.mean.item() == pytest.approx((1 - left) / chance, rel=1e-12)


def test_uniform_lengths_by_hand():
    lengths = LengthDistribution.from_density(torch.full((1, 4), 0.25))
    assert lengths.hazard[0].tolist() == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    assert lengths.mean.item() == pytest.approx(2.5)
    assert lengths.tail.item() == pytest.approx(0)


def test_no_hazard_at_all_expects_every_slot():
    lengths = hazard(0.0, 0.0, 0.0)
    assert lengths.mean.item() == 3
    assert lengths.tail.item() == 1
    assert lengths.quantile(0.5).item() == 3


def test_certain_end_in_the_first_slot_expects_one():
    lengths = hazard(1.0, 0.3, 0.0)
    assert lengths.mean.item() == 1
    assert lengths.tail.item() == 0
    assert lengths.density[0].tolist() == [1, 0, 0]
    assert lengths.quantile(0.999).item() == 1


def test_mean_counts_the_tail_as_the_last_slot():
    lengths = hazard(0.2, 0.1, 0.4, 0.05)
    by_hand = sum(k * p for k, p in enumerate(lengths.density[0].tolist(), 1))
    assert lengths.mean.item() == pytest.approx(by_hand + 4 * lengths.tail.item())


def test_a_thousand_tiny_hazards_do_not_drown():
    lengths = LengthDistribution.from_hazard(torch.full((1, 1000), 1e-12, dtype=torch.float64))
    assert 1 - lengths.tail.item() == pytest.approx(1e-9, rel=1e-4)


@pytest.mark.parametrize(
    ("q", "length"), [(0.001, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (0.999, 4)]
)
def test_quantile_is_the_first_length_that_reaches_its_share(q, length):
    lengths = LengthDistribution.from_density(torch.full((1, 4), 0.25, dtype=torch.float64))
    assert lengths.quantile(q).item() == length


def test_quantile_inside_the_tail_is_the_last_slot():
    lengths = hazard(0.5, 0.0)
    assert lengths.quantile(0.5).item() == 1
    assert lengths.quantile(0.51).item() == 2


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_quantile_outside_its_range_is_refused(q):
    with pytest.raises(SettingError, match=str(q)):
        hazard(0.5).quantile(q)


def test_hazard_cumulative_and_density_describe_one_distribution():
    lengths = hazard(0.1, 0.0, 0.5, 1.0, 0.3)
    for other in (
        LengthDistribution.from_cumulative(lengths.cumulative),
        LengthDistribution.from_density(lengths.density),
    ):
        torch.testing.assert_close(other.survival, lengths.survival, atol=1e-12, rtol=0)
        torch.testing.assert_close(other.mean, lengths.mean)
        assert other.quantile(0.5).tolist() == lengths.quantile(0.5).tolist()


def test_row_after_the_end_is_certain_stays_ended():
    lengths = LengthDistribution.from_cumulative(torch.tensor([[0.4, 1.0, 1.0]]))
    assert lengths.hazard[0, 1:].tolist() == [1, 1]
    assert lengths.tail.item() == 0


def test_float32_rounding_of_a_full_density_is_forgiven():
    density = torch.softmax(torch.linspace(-3, 3, 1000), -1)[None]
    assert LengthDistribution.from_density(density).tail.item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", FROM)
def test_views_are_float64_whatever_comes_in(name):
    lengths = FROM[name](torch.tensor([[0.25, 0.5]], dtype=torch.float16))
    assert {x.dtype for x in (lengths.hazard, lengths.survival, lengths.mean)} == {torch.float64}


def test_built_directly_it_is_checked_like_from_hazard():
    with pytest.raises(LastwordError):
        LengthDistribution(torch.tensor([[2.0]], dtype=torch.float64))


def test_rows_are_independent_and_can_be_taken_out():
    both = LengthDistribution.from_hazard(torch.tensor([[0.5, 0.5], [0.1, 0.2]]))
    assert len(both) == 2
    assert both.row(1).hazard.shape == (2,)
    assert both.row(1).mean.item() == both.mean[1].item() == pytest.approx(1.9)


def test_of_one_prompt_what_is_a_number_can_be_used_as_one():
    one = LengthDistribution.from_hazard(torch.tensor([0.5, 0.25, 0.2]))
    assert f"{one.mean:.2f}" == "1.88"
    assert (int(one.quantile(0.6)), round(float(one.tail), 6)) == (2, 0.3)
    assert one.mean < 2 < one.quantile(0.9)
    assert one.tail > 0.29
    assert one
    with pytest.raises(TypeError, match="no rows"):
        len(one)


@pytest.mark.parametrize("name", FROM)
def test_a_prompt_alone_says_what_its_row_says(name):
    values = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.1, 0.6]])
    both = FROM[name](values)
    for row, own in enumerate(values):
        alone = FROM[name](own)
        for view in ("hazard", "survival", "density", "cumulative", "mean", "tail"):
            torch.testing.assert_close(getattr(alone, view), getattr(both, view)[row])
            assert torch.equal(getattr(both.row(row), view), getattr(both, view)[row])
        for estimate in (Mean(), Quantile(0.6), Cheapest(2.0), Scaled(1.5, margin=3)):
            assert estimate(alone).shape == ()
            assert estimate(alone).item() == pytest.approx(estimate(both)[row].item())


def test_what_a_row_was_read_as_goes_with_it():
    rows = torch.ones(2, 3)
    both = LengthDistribution(rows, ("this", "that"), (Hazard(), EndedBy()))
    assert (both.row(1).explanation, both.row(1).interpretation) == ("that", EndedBy())
    for wrong in ({"explanation": ("this",)}, {"interpretation": (Hazard(),)}):
        with pytest.raises(WrongTypeError, match="must be None or a"):
            LengthDistribution(rows[0], **wrong)


@pytest.mark.parametrize("row", [2, -3])
def test_row_that_is_not_there_is_refused(row):
    both = LengthDistribution.from_hazard(torch.tensor([[0.5, 0.5], [0.1, 0.2]]))
    with pytest.raises((IndexError, LastwordError)):
        both.row(row)


def test_last_row_can_be_counted_from_the_end():
    both = LengthDistribution.from_hazard(torch.tensor([[0.5, 0.5], [0.1, 0.2]]))
    assert both.row(-1).mean.tolist() == both.row(1).mean.tolist()


@pytest.mark.parametrize("name", FROM)
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_what_is_no_probability_is_refused(name, value):
    with pytest.raises(SettingError, match="between 0 and 1"):
        FROM[name](torch.tensor([[0.1, value]]))


@pytest.mark.parametrize("name", FROM)
def test_nan_is_refused_as_a_numeric_error(name):
    with pytest.raises(NumericError, match="NaN"):
        FROM[name](torch.tensor([[0.1, torch.nan]]))


@pytest.mark.parametrize("name", FROM)
def test_no_slots_are_refused(name):
    with pytest.raises(SettingError, match="at least one slot"):
        FROM[name](torch.empty(1, 0))


def test_a_number_alone_is_refused(in_plain_python):
    code = "lastword.LengthDistribution.from_hazard(torch.tensor(0.5))"
    assert in_plain_python([code])[code] == "SettingError"


def test_falling_cumulative_is_refused_with_advice():
    with pytest.raises(SettingError, match=r"falls by 0\.2.*running maximum"):
        LengthDistribution.from_cumulative(torch.tensor([[0.5, 0.3]]))


def test_density_above_one_is_refused_with_its_sum():
    with pytest.raises(SettingError, match=r"sums to 1\.2"):
        LengthDistribution.from_density(torch.tensor([[0.6, 0.6]]))


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 130)])
def test_token_probabilities_equal_a_float64_softmax(shape):
    logits = 5 * torch.randn(*shape, 1000, generator=torch.Generator().manual_seed(1))
    expected = logits.double().softmax(-1)[..., [3, 999]]
    found = token_probabilities(logits, [3, 999])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-12)


def test_token_probabilities_in_chunks_equal_those_of_each_position_alone():
    logits = torch.randn(150, 50_000, generator=torch.Generator().manual_seed(2))
    together = token_probabilities(logits, [7])
    alone = torch.cat([token_probabilities(one[None], [7]) for one in logits[[0, 63, 64, 149]]])
    assert torch.equal(together[[0, 63, 64, 149]], alone)


def test_token_probabilities_of_nothing_are_empty():
    assert token_probabilities(torch.empty(0, 9), [1, 2]).shape == (0, 2)


def test_token_probabilities_keep_what_bfloat16_would_round_away():
    logits = torch.tensor([12.0, 0.0, 0.0]).bfloat16()
    chance = token_probabilities(logits, [0]).item()
    assert chance < 1
    assert chance == pytest.approx(1 / (1 + 2 * torch.tensor(-12.0).double().exp().item()))
