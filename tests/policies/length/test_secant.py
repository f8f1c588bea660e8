from __future__ import annotations

import pytest
import torch

from lastword import Auto, Boundary, FirstBoundary, Hazard, Secant
from lastword.decoding.forward import BatchCost
from lastword.errors import SettingError

END = 7


class FakeProbe:
    """Row r says that its answer has ended by slot k of a canvas with chance said[r](k, slots)."""

    def __init__(self, predicted, *said):
        self.num_rows, self.said, self.predicted = len(said), said, predicted
        self.tried = [[] for _ in said]
        self.cost = BatchCost.zeros(len(said))

    def max_cost(self, slots):
        return self.cost

    def __call__(self, slots, rows=None):
        built = []
        for row, (count, asked) in enumerate(zip(slots.tolist(), rows.tolist())):
            if asked:
                self.tried[row].append(count)
            chance = torch.tensor([self.said[row](k, count) for k in range(1, count + 1)])
            logits = torch.full((count, 8), -torch.inf, dtype=torch.float64)
            logits[:, END], logits[:, 1] = chance.double().log(), (1 - chance.double()).log()
            built.append(logits)
        return self.predicted(*built)


def ends_by(n):
    """Sure of its length whatever the canvas."""
    return lambda k, slots: 1.0 if k >= n else 0.0


def squeezes(n):
    """The longer the canvas, the surer that n slots do; a short one is half believed to do."""
    return lambda k, slots: min(1.0, slots / (2 * n)) * (k == slots or k >= n)


def searched(predicted, policy, *said):
    probe = FakeProbe(predicted, *said)
    return policy.plan(probe).horizon.tolist(), probe.tried


POLICY = Secant(limit=100, initial=8, max_probes=5, tolerance=4)


def test_a_canvas_that_is_too_long_says_what_would_have_done(predicted):
    assert searched(predicted, POLICY, ends_by(5)) == ([8], [[8]])  # less than 4 to be saved
    assert searched(predicted, POLICY, ends_by(4)) == ([4], [[8, 4]])
    horizon, tried = searched(predicted, Secant(100, 40, tolerance=4), ends_by(23))
    assert (horizon, tried) == ([23], [[40, 23]])


def test_a_canvas_without_a_sign_is_followed_by_one_four_times_as_long(predicted):
    assert searched(predicted, POLICY, ends_by(23)) == ([23], [[8, 32, 23]])


def test_readings_that_rise_are_followed_along_their_line(predicted):
    # On c slots the end is reached with chance c / 50; 0.95 of it at 47.5.
    def rising(k, slots):
        return k / 50 if k < 50 else 1.0

    horizon, tried = searched(predicted, POLICY, rising)
    assert tried == [[8, 32, 48]]  # at most four times, then where the line says
    assert horizon == [48]


def test_between_too_short_and_long_enough_the_line_is_followed_too(predicted):
    horizon, (tried,) = searched(predicted, Secant(100, 40, tolerance=2, max_probes=6), squeezes(20.3))
    assert tried[0] == 40
    assert all(tried.count(slots) == 1 for slots in tried)
    assert horizon == [min(slots for slots in tried if slots / 40.6 >= 0.95)]
    assert horizon[0] - max(slots for slots in tried if slots / 40.6 < 0.95) <= 2


def test_a_model_that_sees_no_end_gets_the_limit(predicted):
    never = ends_by(1000)
    assert searched(predicted, POLICY, never) == ([100], [[8, 32, 100]])
    assert searched(predicted, Secant(100, 8, max_probes=2), never) == ([100], [[8, 32]])


def test_only_canvases_that_were_tried_are_planned(predicted):
    horizon, tried = searched(predicted, Secant(100, 40, max_probes=1), ends_by(9))
    assert (horizon, tried) == ([40], [[40]])


def test_each_row_searches_for_itself(predicted):
    said = (ends_by(3), ends_by(23), squeezes(20), ends_by(1000))
    together, tried = searched(predicted, POLICY, *said)
    alone = [searched(predicted, POLICY, one) for one in said]
    assert together == [horizon[0] for horizon, _ in alone]
    assert tried == [tries[0] for _, tries in alone]


def test_the_reading_is_a_setting(predicted):
    # Hazards of 0.1 a slot: 29 of them make it sure, as an "ended by" it never is.
    flat = lambda k, slots: 0.1  # noqa: E731
    assert searched(predicted, Secant(100, 40, interpretation=Hazard()), flat)[0] == [29]
    assert searched(predicted, Secant(100, 20), flat)[0] == [100]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 0}, "limit=0"),
        ({"max_probes": 0}, "max_probes=0"),
        ({"target_probability": 1.0}, "target_probability=1.0"),
        ({"limit": 1024, "initial": 2000}, "raise the limit or start with fewer slots"),
        ({"interpretation": FirstBoundary()}, r"use Survival\(interpretation=FirstBoundary\(\)\)"),
        ({"interpretation": Boundary()}, "which reads one long canvas"),
        ({"interpretation": Auto()}, "which reads one long canvas"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        Secant(**settings)
