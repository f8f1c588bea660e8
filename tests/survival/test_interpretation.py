"""Every reading undoes the training it is made for: a known length distribution comes back."""

from __future__ import annotations

import pickle

import pytest
import torch

import lastword
from lastword.decoding.running_batch import ModelProbe
from lastword.errors import NumericError, SettingError
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import (
    Auto,
    Boundary,
    EndedBy,
    EndSignal,
    FirstBoundary,
    Hazard,
    TurnEnd,
    isotonic,
)

T = 256
READINGS = [Hazard(), EndedBy(), Boundary(), FirstBoundary(), TurnEnd(), Auto()]


def spread_over(first, last, slots=T):
    """Every length from first to last, as likely as any other."""
    density = torch.zeros(1, slots, dtype=torch.float64)
    density[:, first - 1 : last] = 1 / (last - first + 1)
    return density


def log_normal(mean, cv, slots):
    sigma = torch.tensor(1 + cv * cv).double().log().sqrt()
    k = torch.arange(1, slots + 1).double()
    logs = (k.log() - torch.tensor(mean).double().log() + sigma**2 / 2) / sigma
    cumulative = torch.special.ndtr(logs)
    return torch.diff(cumulative, prepend=torch.zeros(1))[None]


LENGTHS = {
    "fixed": spread_over(70, 70),
    "uniform": spread_over(40, 90),
    "two": (spread_over(20, 20) + spread_over(120, 120)) / 2,
    "log-normal": log_normal(80.0, 0.3, T),
    "longer than the probe": log_normal(200.0, 0.3, T),
    "one slot": spread_over(1, 1),
}


def padded(density):
    """End tokens fill the canvas behind the answer."""
    return EndSignal.from_probabilities(density.cumsum(-1).clamp(max=1))


def turned(density):
    """A turn end, then document ends to the end of the canvas."""
    ended = density.cumsum(-1).clamp(max=1)
    return EndSignal.from_probabilities((ended - density).clamp(0, 1), density)


def packed(density, document):
    """Documents one after the other: boundaries of the second, the third, ... as well."""
    slots = density.shape[-1]
    boundaries, next_one = density.clone(), density
    for _ in range(slots):
        spread = torch.zeros_like(density)
        for length in document[0].nonzero()[:, 0].tolist():
            moved = next_one[:, : slots - length - 1]
            spread[:, length + 1 :] += document[0, length] * moved
        next_one = spread
        boundaries = boundaries + spread
        if not bool(spread.any()):
            break
    return EndSignal.from_probabilities(boundaries.clamp(max=1))


def assert_same(found, density):
    truth = LengthDistribution.from_density(density)
    torch.testing.assert_close(found.cumulative, truth.cumulative, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.mean, truth.mean)
    for q in (0.1, 0.5, 0.9):
        assert abs(found.quantile(q).item() - truth.quantile(q).item()) <= 1  # ties within rounding


@pytest.mark.parametrize("density", LENGTHS.values(), ids=LENGTHS)
def test_ended_by_undoes_padding(density):
    assert_same(EndedBy()(padded(density)), density)


@pytest.mark.parametrize("density", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("reading", [TurnEnd(), EndedBy()])
def test_turn_end_and_ended_by_undo_a_turn_end_before_the_padding(reading, density):
    assert_same(reading(turned(density)), density)


@pytest.mark.parametrize("name", ["fixed", "uniform", "one slot"])
@pytest.mark.parametrize("reading", [Boundary(), FirstBoundary()])
def test_boundary_undoes_packing_where_documents_are_longer_than_the_spread(reading, name):
    density = LENGTHS[name]
    assert_same(reading(packed(density, spread_over(100, 140))), density)


def test_hazard_undoes_lengths_without_memory():
    density = 0.05 * 0.95 ** torch.arange(T).double()[None]
    assert_same(Hazard()(EndSignal.from_probabilities(torch.full((1, T), 0.05, dtype=torch.float64))), density)


@pytest.mark.parametrize("mass", [0.8, 0.9, 1.1, 1.2])
def test_first_boundary_forgives_a_lump_whose_mass_is_not_one(mass):
    density = LENGTHS["uniform"]
    signal = packed(density, spread_over(100, 140))
    lumpy = EndSignal.from_probabilities((signal.document * mass).clamp(max=1))
    assert_same(FirstBoundary()(lumpy), density)
    capped = Boundary()(lumpy).mean.item()
    assert capped > 66 if mass < 1 else capped < 64  # the truth is 65


def test_first_boundary_keeps_the_tail_of_a_canvas_that_ends_inside_the_lump():
    signal = EndSignal.from_probabilities(log_normal(200.0, 0.3, 220))
    lengths = FirstBoundary()(signal)
    assert lengths.tail.item() == pytest.approx(1 - signal.document.sum().item())
    assert lengths.mean.item() == pytest.approx(Boundary()(signal).mean.item())


@pytest.mark.parametrize(("cv", "ratio"), [(0.05, 0.93), (0.1, 0.85), (0.2, 0.69), (0.3, 0.56), (0.5, 0.38)])
def test_the_paper_reads_padding_too_short(cv, ratio):
    density = log_normal(300.0, cv, 1024)
    assert Hazard()(padded(density)).mean.item() / 300 == pytest.approx(ratio, abs=0.01)
    assert EndedBy()(padded(density)).mean.item() / 300 == pytest.approx(1, abs=0.01)


def test_the_paper_reads_packing_too_long():
    density = LENGTHS["uniform"]
    signal = packed(density, spread_over(100, 140))
    assert Hazard()(signal).mean.item() > 1.4 * 65
    assert Boundary()(signal).mean.item() == pytest.approx(65)


def test_boundary_says_too_short_where_a_second_document_may_end_first():
    density = LENGTHS["uniform"]  # a spread of 50 slots, and documents of 10
    assert Boundary()(packed(density, spread_over(10, 10))).mean.item() < 60


def test_a_wavering_curve_keeps_its_mean_and_rises():
    wavering = torch.tensor([[0.0, 0.4, 0.2, 0.9, 0.7, 1.0]], dtype=torch.float64)
    lengths = EndedBy()(EndSignal.from_probabilities(wavering))
    assert lengths.cumulative[0].tolist() == pytest.approx([0, 0.3, 0.3, 0.8, 0.8, 1])
    assert lengths.mean.item() == pytest.approx(1 + (1 - wavering[0, :-1]).sum().item())


def test_a_word_that_stands_rules_out_every_end_before_it():
    ends = torch.full((1, 4), 0.25, dtype=torch.float64)
    signal = EndSignal(ends, torch.zeros_like(ends), torch.tensor([2]))
    assert EndedBy()(signal).cumulative[0].tolist() == pytest.approx([0, 0, 0.25, 0.25])
    assert Boundary()(signal).cumulative[0].tolist() == pytest.approx([0, 0, 0.25, 0.5])
    turned = EndSignal(torch.zeros_like(ends), ends, torch.tensor([2]))
    assert TurnEnd()(turned).hazard[0].tolist() == pytest.approx([0, 0, 0.25, 0.25])
    assert Hazard()(signal).hazard[0].tolist() == pytest.approx([0.25] * 4)  # the paper's own words


def toy_probe(hazard):
    return ModelProbe(lastword.Toy(hazard), [[0]])(T)


@pytest.mark.parametrize(
    ("signal", "reading"),
    [
        (padded(LENGTHS["uniform"]), EndedBy()),
        (padded(LENGTHS["log-normal"]), EndedBy()),
        (turned(LENGTHS["uniform"]), TurnEnd()),
        (packed(LENGTHS["uniform"], spread_over(100, 140)), FirstBoundary()),
        (EndSignal.from_probabilities(torch.full((1, T), 1e-6)), FirstBoundary()),
        # Half of all slots, here and there: neither padding nor packing.
        (EndSignal.from_probabilities(torch.tensor([[0.0, 0.6] * 128])), Hazard()),
        # As likely everywhere, or nearly: lengths without memory, whatever rounding adds.
        *((EndSignal.from_probabilities(torch.full((1, T), h)), Hazard()) for h in (0.15, 0.2, 0.3, 0.6)),
        *((lastword.Survival(T).signal(toy_probe(h)), Hazard()) for h in (0.15, 0.3, 0.6)),
        (EndSignal.from_probabilities(torch.linspace(0.15, 0.16, T)[None]), Hazard()),
        (EndSignal.from_probabilities(torch.linspace(0.65, 0.55, T)[None]), Hazard()),
        # An answer that may be over at once, on a canvas that is sure of it far behind.
        (EndSignal.from_probabilities((0.3 + torch.arange(T) / 20).clamp(max=1)[None]), EndedBy()),
        # One that is likely to be longer than the canvas: the signal rises, and not far.
        (EndSignal.from_probabilities(torch.linspace(0.02, 0.3, T)[None]), EndedBy()),
    ],
)
def test_auto_picks_the_reading_of_the_training_and_says_why(signal, reading):
    (choice,) = Auto().choose(signal)
    assert choice.interpretation == reading
    lengths = Auto()(signal)
    assert torch.equal(lengths.hazard, reading(signal).hazard)
    assert lengths.explanation == (choice.reason,)


def test_auto_picks_row_by_row():
    one, two = padded(LENGTHS["uniform"]), packed(LENGTHS["uniform"], spread_over(100, 140))
    both = EndSignal.from_probabilities(torch.cat((one.document, two.document)))
    lengths = Auto()(both)
    assert [sentence.split(":")[0] for sentence in lengths.explanation] == ["ended by", "first boundary"]
    assert lengths.row(1).explanation == lengths.explanation[1]
    assert lengths.mean.tolist() == pytest.approx([65, 65])


@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_readings_are_plain_data(reading):
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert hash(reading) == hash(pickle.loads(pickle.dumps(reading)))


def test_rising_is_the_nearest_curve_that_never_falls():
    values = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0]], dtype=torch.float64)
    assert isotonic(values).tolist() == [[2.0, 2.0, 2.0, 4.5, 4.5]]
    assert isotonic(values.sort().values).tolist() == values.sort().values.tolist()
    assert isotonic(values[:0]).shape == (0, 5)


def test_signals_of_different_shapes_are_refused(in_plain_python):
    rows = "torch.zeros(1, dtype=torch.long)"
    code = f"lastword.EndSignal(torch.zeros(1, 3), torch.zeros(1, 4), {rows})"
    assert in_plain_python([code])[code] == "SettingError"


def test_what_is_no_probability_is_refused():
    with pytest.raises(SettingError, match="turn-end probability"):
        EndSignal.from_probabilities(torch.zeros(1, 2), torch.tensor([[0.0, 1.5]]))
    with pytest.raises(NumericError, match="NaN"):
        EndSignal.from_probabilities(torch.tensor([[torch.nan]]))
