"""What must hold for every decoding: each row as if alone, the prompt untouched, no mask left."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

import lastword
from lastword.decoding.forward import TokenCost
from tests.golden.cases import model
from tests.laws.axes import LENGTHS, MODELS, RESIZING, RULES, prompts, recipes, tiny


@settings(max_examples=24)
@given(st.sampled_from(MODELS), prompts, recipes([*LENGTHS, *RESIZING]))
def test_each_row_of_a_batch_equals_its_solo_run(name, batch, recipe):
    """Recipes and prompts by chance; every pair of parts in turn: test_cross.py. Nowhere else."""
    check_rows_against_solo_runs(tiny(name), batch, recipe)


def check_rows_against_solo_runs(model, batch, recipe):
    answers = lastword.generate(model, batch, recipe=recipe, seed=5)
    for row, answer in enumerate(answers):
        alone = lastword.generate(model, batch[row], recipe=recipe, seed=5 + row)
        assert answer.canvas == alone.canvas
        assert answer.horizon == alone.horizon
        assert answer.cost == alone.cost
        assert answer.probe_cost == alone.probe_cost
        assert answer.finish == alone.finish


@settings(max_examples=20)
@given(st.sampled_from(["llada", "dream"]), prompts, recipes(LENGTHS))
def test_masks_only_ever_fill_and_the_prompt_stays(family, batch, recipe):
    before = None
    for step in lastword.decode(model(family), batch, recipe):
        canvas = step.canvas
        for row, prompt in enumerate(batch):
            assert canvas.tokens[row, canvas.start - len(prompt) : canvas.start].tolist() == prompt
        if before is not None:
            # What is cut becomes padding, a literal behind the end included.
            written = ~before.masked & canvas.valid
            assert torch.equal(before.tokens[written], canvas.tokens[written])
            assert (canvas.masked.sum(-1) <= before.masked.sum(-1)).all()
        assert not (step.chosen & ~step.prediction.canvas.masked).any()
        before = canvas
    assert not before.masked.any()


@settings(max_examples=8)
@given(st.sampled_from(["llada", "dream"]), prompts, st.sampled_from(RULES), st.integers(1, 12))
def test_rules_stay_inside_the_window(family, batch, rule, block):
    recipe = lastword.Recipe(length=lastword.Fixed(11), unmask=rule, block=block)
    for step in lastword.decode(model(family), batch, recipe):
        inside = step.clock.window.columns(step.canvas.width)
        assert not (step.chosen & ~inside).any()


@pytest.mark.parametrize("slots", [1, 2, 31, 32, 33, 77])
@pytest.mark.parametrize("block", [None, 32])
def test_any_length_works_with_any_block(slots, block):
    answer = lastword.generate(model("llada"), [5, 6], length=lastword.Fixed(slots), block=block)
    assert len(answer.canvas) == slots
    assert answer.cost == TokenCost(slots, slots * (slots + 2), slots * (slots + 2) ** 2)


def test_the_probe_is_paid_for_and_apart():
    answer = lastword.generate(model("llada"), [5, 6, 7], length=lastword.Survival(limit=40))
    assert answer.probe_cost == TokenCost(1, 43, 43**2)
    assert answer.cost.forward_passes == answer.horizon


def test_guidance_pays_for_both_branches():
    plain = lastword.generate(model("llada"), [5, 6], length=lastword.Fixed(8))
    guided = lastword.generate(
        model("llada"), [5, 6], length=lastword.Fixed(8), sampling=lastword.Sampling(guidance=1.0)
    )
    assert guided.cost.forward_passes == plain.cost.forward_passes
    assert guided.cost.tokens_computed == 2 * plain.cost.tokens_computed


def test_finished_rows_leave_the_forward():
    recipe = lastword.Recipe(length=lastword.Survival(limit=60))
    sizes = [
        (int(step.prediction.columns.rows.numel()), int(step.canvas.masked.any(-1).sum()))
        for step in lastword.decode(model("llada"), [[1, 251, 110, 248, 72], [7]], recipe)
    ]
    assert sizes[0][0] == 2
    assert sizes[-1][0] == 1  # the longer row finishes alone
