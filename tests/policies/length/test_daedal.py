from __future__ import annotations

import pytest
import torch

from lastword.canvas.canvas import Clock
from lastword.decoding.forward import BatchCost
from lastword.policies.length.daedal import Daedal, end_confidence
from lastword.policies.unmask.threshold import AboveThreshold

END, MASK = 7, 6


def logits(*slots):
    """[T, 8] from (word, its probability) pairs; the other words share the rest."""
    rows = []
    for word, chance in slots:
        row = torch.full((8,), (1 - chance) / 7, dtype=torch.float64)
        row[word] = chance
        rows.append(row.log())
    return torch.stack(rows)


def after_a_pass(prediction, threshold=0.9):
    """The canvas an AboveThreshold pass without blocks leaves, and its clock."""
    canvas = prediction.canvas
    clock, columns = Clock.start(canvas).tick(canvas, None), prediction.columns
    chosen, _ = AboveThreshold(threshold).choose(prediction, columns.gather(canvas.masked), clock, ())
    return canvas.write(columns.scatter(chosen), prediction.tokens_on_canvas), clock


def revised(policy, prediction):
    canvas, clock = after_a_pass(prediction)
    after, state = policy.revise(canvas, prediction, clock, ())
    assert state == ()
    return after


def test_end_confidence_passes_over_words_and_counts_from_the_right(predicted):
    slots = [(END, 0.5), (END, 0.6), (1, 0.9), (END, 0.8), (2, 0.7)]
    prediction = predicted(logits(*slots))
    assert end_confidence(prediction, 1).item() == pytest.approx(0.8)
    assert end_confidence(prediction, 2).item() == pytest.approx((0.8 + 0.6) / 2)


def test_end_slots_that_are_missing_count_as_nothing(predicted):
    prediction = predicted(logits((END, 0.8), (1, 0.9)), logits((1, 0.9)))
    assert end_confidence(prediction, 4).tolist() == pytest.approx([0.2, 0.0])


def test_an_end_token_that_is_not_the_likeliest_does_not_count(predicted):
    slot = torch.full((1, 8), 0.02)
    slot[0, END], slot[0, 1] = 0.43, 0.45
    assert end_confidence(predicted(slot.log()), 1).item() == 0


GROWING = Daedal(initial=2, limit=20, expansion_factor=4, eos_window=2, expand_threshold=0.9, low_threshold=0.3)


def test_the_least_sure_mask_becomes_several(predicted):
    prediction = predicted(logits((1, 0.95), (2, 0.25), (3, 0.2), (END, 0.8)))
    assert after_a_pass(prediction)[0].answer_ids(0) == [1, MASK, MASK, MASK]
    after = revised(GROWING, prediction)
    assert after.answer_ids(0) == [1, MASK, MASK, MASK, MASK, MASK, MASK]
    assert after.horizon.tolist() == [4 + 3]


def test_what_stands_right_of_the_insertion_moves(predicted):
    prediction = predicted(logits((2, 0.2), (3, 0.95)))
    assert revised(GROWING, prediction).answer_ids(0) == [MASK] * 4 + [3]


@pytest.mark.parametrize(
    "slots",
    [
        [(1, 0.95), (2, 0.2), (END, 0.95), (END, 0.95)],  # the end is in sight
        [(1, 0.95), (2, 0.4), (3, 0.35)],  # no mask is below `lost`
        [(2, 0.2)],  # the one unsure slot was just filled
    ],
)
def test_nothing_is_inserted_without_need(slots, predicted):
    assert revised(GROWING, predicted(logits(*slots))).horizon.tolist() == [len(slots)]


def test_only_masks_of_the_window_are_looked_at(predicted):
    prediction = predicted(logits((1, 0.95), (2, 0.5), (3, 0.2), (3, 0.2)))
    canvas = prediction.canvas
    clock = Clock.start(canvas).tick(canvas, 2)
    after, _ = GROWING.revise(canvas, prediction, clock, ())
    assert after.horizon.tolist() == [4]


def test_at_the_limit_end_tokens_fall_off_but_no_text_does(predicted):
    policy = Daedal(initial=2, limit=5, expansion_factor=4, eos_window=2, low_threshold=0.3)
    prediction = predicted(
        logits((2, 0.2), (1, 0.95), (2, 0.5), (END, 0.8)), logits((2, 0.2), (1, 0.95), (2, 0.5), (1, 0.95))
    )
    after = revised(policy, prediction)
    assert after.answer_ids(0) == [MASK, MASK, MASK, MASK, 1]
    assert after.answer_ids(1) == [MASK, MASK, 1, MASK, 1]


def test_a_row_at_its_limit_is_left_alone(predicted):
    policy = Daedal(initial=2, limit=3, expansion_factor=4, eos_window=2, low_threshold=0.3)
    prediction = predicted(logits((2, 0.2), (1, 0.2), (END, 0.8)))
    canvas, _ = after_a_pass(prediction)
    assert revised(policy, prediction).answer_ids(0) == canvas.answer_ids(0)
    assert "argmax_tokens" not in prediction.__dict__  # nor is the whole answer read for it


class FakeProbe:
    """Row r sees its end from `enough[r]` slots on."""

    def __init__(self, predicted, *enough):
        self.num_rows, self.enough, self.predicted = len(enough), enough, predicted
        self.asked, self.cost = [], BatchCost.zeros(len(enough))

    def max_cost(self, slots):
        return self.cost

    def __call__(self, slots, rows=None):
        self.asked.append((slots, rows.tolist()))
        return self.predicted(*(logits(*[(END if slots >= need else 1, 0.9)] * slots) for need in self.enough))


def test_stage_one_asks_growing_rows_only_and_never_at_the_limit(predicted):
    probe = FakeProbe(predicted, 3, 99, 6)
    plan = Daedal(initial=3, limit=10, expansion_factor=3, eos_window=3).plan(probe)
    assert plan.horizon.tolist() == [3, 10, 6]
    assert probe.asked == [(3, [True, True, True]), (6, [False, True, True]), (9, [False, True, False])]


def test_the_plan_closes_with_half_a_window_of_end_tokens_within_the_limit(predicted, ids):
    plan = Daedal(initial=3, limit=10, expansion_factor=3, eos_window=7).plan(FakeProbe(predicted, 99, 99))
    assert plan.end_suffix.tolist() == [0, 0]
    plan = Daedal(initial=8, limit=10, expansion_factor=3, eos_window=7, eos_threshold=0.0).plan(
        FakeProbe(predicted, 1)
    )
    assert plan.end_suffix.tolist() == [2]
    assert plan.canvas([[0]], ids).answer_ids(0) == [MASK] * 8 + [END] * 2


def test_the_closing_tokens_do_not_make_an_answer_look_ended(llada):
    import lastword

    policy = Daedal(initial=6, limit=40, expansion_factor=8, eos_window=8, eos_threshold=0.0, low_threshold=0.0)
    sampling = lastword.Sampling(forbid_end=True)
    answer = lastword.generate(llada, [5, 6, 7], length=policy, sampling=sampling)
    assert answer.canvas[6:] == [llada.ids.end] * 4
    assert len(answer.tokens) == 6
    assert answer.finish is lastword.Finish.TRUNCATED
