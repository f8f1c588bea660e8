"""SlowFast against runs of its own code: see PEERS.md."""

from functools import partial

import pytest
import torch

import lastword
from tests.golden.cases import checkpoint, computed_per_pass, peer_cases, recording

CASES = peer_cases("peers_slowfast")
recorded = partial(recording, "peers_slowfast")


def recipe_of(case) -> lastword.Recipe:
    s = case["settings"]
    rule = lastword.SlowFast(
        high_confidence=s["high_confidence_threshold"],
        min_confidence=s["cycle_len_confidence_threshold"],
        exploration_steps=s["k_exploration_steps"],
        stability_window=s["cycle_length_stability_window"],
        stability_std=s["cycle_length_stability_std_dev_threshold"],
        as_released=True,
    )
    return lastword.Recipe(length=lastword.Fixed(s["gen_length"]), unmask=rule, block=s["block_length"])


def busy(case, name):
    """What was recorded of the passes that filled something: theirs runs some that cannot."""
    counted = zip(recorded()[f"{case['name']}.{name}"], case["commits_per_pass"])
    return [value for value, count in counted if count]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    """The canvas before each pass, the columns that the pass computed, and what all of them cost."""
    prompt = recorded()[f"{case['name']}.prompt"].tolist()
    steps = list(lastword.decode(checkpoint(case["model"]), prompt, recipe_of(case)))
    theirs = busy(case, "trace")
    assert len(steps) == len(theirs)
    for step, canvas in zip(steps, theirs):
        assert torch.equal(step.prediction.canvas.tokens, canvas.long())
    assert torch.equal(steps[-1].canvas.tokens, recorded()[f"{case['name']}.output"])
    computed = computed_per_pass(steps)
    assert computed == [int(last - first) for first, last in busy(case, "trace_span")]
    assert int(steps[-1].cost.attention_pairs[0]) == sum(width**2 for width in computed)
    assert len(set(computed)) > 1 or not case["truncated_passes"]


@pytest.mark.parametrize("name", ["llada-tiny", "llada-tiny-eos"])
@pytest.mark.parametrize("block", [16, 64])
def test_recorded_prompts_in_one_batch_equal_their_solo_runs(name, block):
    """Rows of unequal prompts are in different phases, each seeing its own columns."""
    prompts = [case["prompt"] for case in CASES if case["model"] == name]
    recipe = lastword.Recipe(
        length=lastword.Fixed(40), unmask=lastword.SlowFast(0.5, 0.2, 3, as_released=True), block=block
    )
    together = lastword.generate(checkpoint(name), prompts, recipe=recipe)
    alone = [lastword.generate(checkpoint(name), prompt, recipe=recipe) for prompt in prompts]
    assert [answer.canvas for answer in together] == [answer.canvas for answer in alone]
    assert [answer.cost for answer in together] == [answer.cost for answer in alone]
    assert len({str(answer.cost) for answer in together}) > 1
