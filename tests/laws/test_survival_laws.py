"""What must hold for every length distribution."""

import torch
from hypothesis import given, strategies as st

from lastword.survival.distribution import LengthDistribution, Mean, Quantile
from lastword.survival.interpretation import Auto, Boundary, EndedBy, EndSignal, FirstBoundary, Hazard, TurnEnd

probabilities = st.floats(0, 1, allow_nan=False) | st.just(0.0) | st.just(1.0)
hazards = st.lists(probabilities, min_size=1, max_size=60).map(lambda row: torch.tensor([row], dtype=torch.float64))
orders = st.floats(0.01, 0.99)


@given(hazards)
def test_survival_starts_at_one_and_never_rises(hazard):
    survival = LengthDistribution.from_hazard(hazard).survival[0]
    assert survival[0] == 1
    assert (survival.diff() <= 1e-15).all()


@given(hazards)
def test_density_and_tail_sum_to_one(hazard):
    lengths = LengthDistribution.from_hazard(hazard)
    assert torch.isclose(lengths.density.sum() + lengths.tail, torch.tensor(1.0).double()).all()


@given(hazards)
def test_mean_is_the_restricted_mean(hazard):
    lengths = LengthDistribution.from_hazard(hazard)
    slots = torch.arange(1, lengths.slots + 1)
    by_definition = (slots * lengths.density).sum() + lengths.slots * lengths.tail
    assert torch.isclose(lengths.mean, by_definition).all()
    assert 1 <= lengths.mean.item() <= lengths.slots + 1e-9


@given(hazards)
def test_all_three_constructions_agree(hazard):
    lengths = LengthDistribution.from_hazard(hazard)
    for rebuilt in (
        LengthDistribution.from_cumulative(lengths.cumulative),
        LengthDistribution.from_density(lengths.density),
    ):
        torch.testing.assert_close(rebuilt.survival, lengths.survival, atol=1e-9, rtol=0)


@given(hazards, orders)
def test_quantile_is_the_first_slot_that_reaches_its_order(hazard, q):
    lengths = LengthDistribution.from_hazard(hazard)
    k = int(lengths.quantile(q))
    reached = lengths.cumulative[0]
    assert 1 <= k <= lengths.slots
    assert reached[k - 1] >= q - 1e-9 or k == lengths.slots
    assert k == 1 or reached[k - 2] < q


@given(hazards, orders, orders)
def test_quantiles_rise_with_their_order(hazard, a, b):
    lengths = LengthDistribution.from_hazard(hazard)
    low, high = sorted((a, b))
    assert lengths.quantile(low) <= lengths.quantile(high)


@given(st.lists(hazards, min_size=2, max_size=4))
def test_rows_do_not_touch_each_other(rows):
    slots = min(row.shape[1] for row in rows)
    together = LengthDistribution.from_hazard(torch.cat([row[:, :slots] for row in rows]))
    for place, row in enumerate(rows):
        alone = LengthDistribution.from_hazard(row[:, :slots])
        for estimate in (Mean(), Quantile(0.5)):
            assert estimate(together)[place] == estimate(alone)[0]


def test_a_thousand_small_hazards_do_not_drown():
    flat = LengthDistribution.from_hazard(torch.full((1, 1024), 0.0016, dtype=torch.float64))
    exact = (1 - (1 - 0.0016) ** 1024) / 0.0016
    assert abs(flat.mean.item() - exact) < 1e-9
    assert round(flat.tail.item() * 1024) == 199  # the share of the mean that is only "beyond T"


readings = st.sampled_from([Hazard(), EndedBy(), Boundary(), FirstBoundary(), TurnEnd(), Auto()])


@st.composite
def signals(draw):
    """A batch of any signals: two ends that share each slot's probability, some words written."""
    slots, rows = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    numbers = st.lists(probabilities, min_size=slots * rows, max_size=slots * rows)
    ends = torch.tensor(draw(numbers), dtype=torch.float64).view(rows, slots)
    share = torch.tensor(draw(numbers), dtype=torch.float64).view(rows, slots)
    reached = torch.tensor(draw(st.lists(st.integers(0, slots), min_size=rows, max_size=rows)))
    return EndSignal(ends * share, ends * (1 - share), reached)


@given(signals(), readings)
def test_whatever_the_signal_a_reading_is_a_distribution(signal, reading):
    lengths = reading(signal)
    survival = lengths.survival
    assert (survival[:, 0] == 1).all()
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (survival.diff(dim=-1) <= 1e-15).all()
    assert ((lengths.mean >= 1) & (lengths.mean <= lengths.slots + 1e-9)).all()
    assert (lengths.quantile(0.5) <= lengths.quantile(0.9)).all()


@given(signals(), readings)
def test_a_row_is_read_as_if_it_were_alone(signal, reading):
    together = reading(signal)
    for row in range(len(signal)):
        alone = reading(signal.row(row))
        assert torch.equal(together.hazard[row], alone.hazard[0])
        assert together.row(row).interpretation == alone.row(0).interpretation


@given(signals(), st.sampled_from([EndedBy(), Boundary(), FirstBoundary(), TurnEnd()]))
def test_no_answer_ends_before_a_word_that_stands(signal, reading):
    lengths = reading(signal)
    for row, reached in enumerate(signal.text_slots.tolist()):
        if 0 < reached < lengths.slots:
            assert lengths.survival[row, reached] == 1
