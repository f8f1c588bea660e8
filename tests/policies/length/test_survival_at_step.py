from __future__ import annotations

import pytest
import torch

import lastword
from lastword import Boundary, EndedBy, Fixed, Mean, Quantile, Recipe, Survival, SurvivalAtStep
from lastword.canvas.canvas import Clock
from lastword.decoding.running_batch import ModelProbe

END, MASK = 7, 6


def test_step_zero_predicts_what_the_probe_predicts(llada):
    prompts = [[5, 42, 17], [9], [100, 63, 7, 7, 21]]
    survival = Survival(40)
    plan = survival.plan(ModelProbe(llada, prompts))
    step = next(lastword.decode(llada, prompts, Recipe(length=SurvivalAtStep(0, survival))))
    least = step.prediction.canvas.write(step.chosen, step.prediction.tokens_on_canvas).min_horizon
    assert step.canvas.horizon.tolist() == torch.maximum(plan.horizon, least).tolist()
    assert step.probe_cost.forward_passes.tolist() == [0, 0, 0]


@pytest.mark.parametrize("at", [0, 2, 5])
def test_the_canvas_is_cropped_once_after_the_pass_of_that_step(at, llada):
    survival = Survival(40, Quantile(0.3))
    steps = list(lastword.decode(llada, [[5, 42, 17]], Recipe(length=SurvivalAtStep(at, survival))))
    horizons = [int(step.canvas.horizon) for step in steps]
    assert horizons[:at] == [40] * at
    assert len(set(horizons[at:])) == 1
    assert horizons[at] < 40
    drift = list(lastword.decode(llada, [[5, 42, 17]], Recipe(length=Fixed(40))))[at]
    predicted = survival.horizon(survival.interpret(drift.prediction))
    assert horizons[at] == max(int(predicted), int(drift.canvas.min_horizon))


def survival_of(prediction, answer, survival):
    """The reading of a pass over a canvas with these tokens."""
    object.__setattr__(prediction, "canvas", prediction.canvas.replace_answer(torch.tensor([[0, *answer]])))
    return survival.interpret(prediction)


def half_ending(slots):
    logits = torch.full((slots, 8), -torch.inf)
    logits[:, [1, END]] = 0.0
    return logits


def test_a_written_slot_ends_the_answer_for_certain_or_not_at_all(predicted):
    lengths = survival_of(predicted(half_ending(4)), [2, MASK, END, MASK], Survival(4))
    assert lengths.hazard.tolist() == [[0.0, 0.5, 1.0, 0.5]]
    assert lengths.mean.item() == 2.5


def test_a_written_turn_end_ends_the_answer_too(golden):
    model = lastword.load(golden / "llada-tiny", device="cpu", turn_ends=(380,))
    write = lastword.Hooks(tokens=lambda at, canvas: canvas.tokens.index_fill(1, torch.tensor([4]), 380))
    step = next(lastword.decode(model, [[1, 2]], Recipe(length=Fixed(6)), hooks=write))
    assert Survival(6).interpret(step.prediction).hazard[0, 2] == 1


def test_what_is_written_before_a_word_is_text_for_the_other_readings(predicted):
    prediction = predicted(half_ending(4))
    lengths = survival_of(prediction, [MASK, 2, MASK, MASK], Survival(4, interpretation=EndedBy()))
    assert lengths.cumulative.tolist() == [[0.0, 0.0, 0.5, 0.5]]
    prediction = predicted(half_ending(4))
    lengths = survival_of(prediction, [MASK, 2, END, 3], Survival(4, interpretation=Boundary()))
    assert lengths.cumulative.tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ([1, MASK, MASK, MASK, MASK], 2),  # 0 then halves: 2.875 slots, of which a median of 2
        ([1, MASK, MASK, 2, MASK], 4),  # a word beyond the horizon stays, and what is before it
        ([1, MASK, MASK, MASK, END], 2),  # an end token beyond the horizon goes
        ([MASK, END, 3, 3, 3], 1),  # words behind an end token are no text
    ],
)
def test_the_crop_keeps_words_beyond_the_horizon(answer, left, predicted):
    prediction = predicted(half_ending(5))
    policy = SurvivalAtStep(0, Survival(5, Quantile(0.5)))
    canvas = prediction.canvas.replace_answer(torch.tensor([[0, *answer]]))
    object.__setattr__(prediction, "canvas", canvas)
    clock = Clock.start(canvas).tick(canvas, None)
    assert policy.revise(canvas, prediction, clock, ())[0].horizon.tolist() == [left]


def test_the_estimate_is_that_of_the_survival_it_reads_for(predicted):
    prediction = predicted(half_ending(20))
    canvas = prediction.canvas
    clock = Clock.start(canvas).tick(canvas, None)
    planned = [
        SurvivalAtStep(0, Survival(20, estimate)).revise(canvas, prediction, clock, ())[0]
        for estimate in (Mean(), Quantile(0.9))
    ]
    assert [canvas.horizon.item() for canvas in planned] == [2, 4]
