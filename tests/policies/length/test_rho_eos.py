from __future__ import annotations

import pytest
import torch

from lastword.canvas.canvas import Clock
from lastword.policies.length.daedal import end_confidence
from lastword.policies.length.rho_eos import RhoEos

END, MASK = 7, 6


def ending(ends, of, chance=0.9):
    """Logits of `of` slots, the last `ends` of which would end the answer."""
    rows = torch.full((of, 8), (1 - chance) / 7)
    rows[: of - ends, 1] = chance
    rows[of - ends :, END] = chance
    return rows.log()


def later(prediction, passes=0):
    clock = Clock.start(prediction.canvas)
    for _ in range(passes + 1):
        clock = clock.tick(prediction.canvas, None)
    return clock


def revised(policy, prediction, canvas=None, passes=0):
    canvas = prediction.canvas if canvas is None else canvas
    after, state = policy.revise(canvas, prediction, later(prediction, passes), ())
    assert state == ()
    return after


@pytest.mark.parametrize(
    ("pace", "changes"),
    [
        # density     0   0.1  0.2  0.3 0.4 0.5 0.6 0.7  0.8  0.9   1
        ("exp", [16, 8, 4, 2, 0, 0, 0, -2, -4, -8, -16]),
        ("linear", [8, 6, 4, 2, 0, 0, 0, -2, -4, -6, -8]),
        ("const", [2, 2, 2, 2, 0, 0, 0, -2, -2, -2, -2]),
    ],
)
def test_the_change_follows_the_gap_and_whole_gaps_are_not_rounded_up(pace, changes, predicted):
    policy = RhoEos(expansion_factor=2, scheduler=pace)
    prediction = predicted(*(ending(ends, of=10) for ends in range(11)))
    assert policy.length_change(prediction).tolist() == changes


def test_no_more_than_eight_units(predicted):
    policy = RhoEos(expansion_factor=1, rho_low=0.95, rho_high=1.0)
    assert policy.length_change(predicted(ending(0, of=4))).tolist() == [8]


def test_a_gap_between_two_steps_counts_as_the_larger(predicted):
    policy = RhoEos(expansion_factor=1, rho_low=0.4, rho_high=0.6, scheduler="linear")
    assert policy.length_change(predicted(ending(1, of=4))).tolist() == [2]  # a gap of 0.15


def test_the_density_looks_at_masks_only(predicted):
    prediction = predicted(ending(2, of=4))
    canvas = prediction.canvas
    two = torch.tensor([[False, True, True, False, False]])
    object.__setattr__(prediction, "canvas", canvas.write(two, torch.ones_like(canvas.tokens)))
    assert RhoEos().density(prediction).item() == 1


def test_the_released_signal_is_the_trailing_end_confidence(predicted):
    policy = RhoEos(signal="released", eos_window=4, expansion_factor=1)
    prediction = predicted(ending(2, of=8))  # a quarter of the masks: the density would grow by 2
    assert end_confidence(prediction, 4).item() == pytest.approx(2 * 0.9 / 4)
    assert policy.length_change(prediction).tolist() == [0]


def test_growth_appends_masks_and_stops_at_the_limit(predicted):
    grown = revised(RhoEos(initial=4, limit=9, expansion_factor=1), predicted(ending(0, of=4)))
    assert grown.answer_ids(0) == [MASK] * 9


def test_a_row_at_the_limit_is_left_alone(predicted):
    prediction = predicted(ending(4, of=4))
    assert revised(RhoEos(initial=4, limit=4), prediction).horizon.tolist() == [4]
    assert not prediction.__dict__.keys() & {"argmax_tokens"}  # nor is anything read for it
    assert revised(RhoEos(initial=4, limit=5, expansion_factor=1), prediction).horizon.tolist() == [1]


def test_resizing_ends_after_some_passes(predicted):
    policy, prediction = RhoEos(limit=64, expansion_factor=1, max_adjust_steps=3), predicted(ending(0, of=4))
    assert revised(policy, prediction, passes=2).horizon.tolist() == [12]
    assert revised(policy, prediction, passes=3).horizon.tolist() == [4]


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ([MASK] * 6, [MASK]),  # never to nothing
        ([1, MASK, 2, MASK, MASK, MASK], [1, MASK, 2]),  # text stays, the masks within it too
        ([1, 2, END, MASK, MASK, MASK], [1, 2, END]),  # and so does the end that closes it
        ([1, MASK, MASK, MASK, MASK, END], [1]),  # an end token behind masks is no text
    ],
)
def test_shrinking_keeps_text_and_one_slot(answer, left, predicted):
    prediction = predicted(ending(6, of=6))
    canvas = prediction.canvas.replace_answer(torch.tensor([[0, *answer]]))
    assert revised(RhoEos(limit=64, expansion_factor=8), prediction, canvas).answer_ids(0) == left


def test_rows_are_resized_apart(predicted):
    prediction = predicted(ending(0, of=4), ending(2, of=4), ending(4, of=4))
    after = revised(RhoEos(limit=64, expansion_factor=1, scheduler="const"), prediction)
    assert after.horizon.tolist() == [5, 4, 3]
