"""Early commit against runs of Prophet's own code: see PEERS.md."""

from functools import partial

import pytest
import torch

import lastword
from tests.golden.cases import checkpoint, peer_cases, recording

CASES = peer_cases("peers_prophet")
recorded = partial(recording, "peers_prophet")


def rule_of(case) -> lastword.Prophet:
    s = case["settings"]
    return lastword.Prophet(
        early_threshold=s["thresholds"]["early"],
        middle_threshold=s["thresholds"]["mid"],
        late_threshold=s["thresholds"]["late"],
        answer_start=s["answer_start"],
        literals=tuple((int(slot), token) for slot, token in (s["constraints"] or {}).items()),
    )


def steps_of(case):
    s = case["settings"]
    recipe = lastword.Recipe(
        length=lastword.Fixed(s["gen_length"]),
        unmask=lastword.MostConfident(lastword.EqualShares(s["gen_length"] / s["steps"])),
        commit=rule_of(case),
        block=s["block_length"],
    )
    prompt = recorded()[f"{case['name']}.prompt"].tolist()
    return list(lastword.decode(checkpoint(case["model"]), prompt, recipe))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    """The canvas before each pass, the gap that the rule measures, and the work done.

    Work done is their step over steps exactly, where every pass fills an equal share; literals are given, not done.
    """
    name, settings = case["name"], case["settings"]
    slots = settings["gen_length"]
    steps, rule = steps_of(case), rule_of(case)
    theirs = recorded()[f"{name}.trace"].long()
    assert len(steps) == len(theirs) == case["forward_calls"]
    for step, canvas in zip(steps, theirs):
        assert torch.equal(step.prediction.canvas.tokens[0, -slots:], canvas[0, -slots:])
    assert torch.equal(steps[-1].canvas.tokens[0], recorded()[f"{name}.output"][0])
    gaps = [rule.mean_lead(step.prediction, step.prediction.canvas).item() for step in steps]
    assert gaps == pytest.approx(recorded()[f"{name}.region_gap"].tolist(), abs=1e-3)
    literals = len(settings["constraints"] or {})
    for n, step in enumerate(steps[:-1], 1):
        left = int(step.canvas.masked.sum())
        assert (slots - left - literals) / slots == n / settings["steps"]


def their_exit(case, bars) -> int:
    """The pass their code would leave at with other bars: until then the run is the recorded one."""
    gaps = recorded()[f"{case['name']}.region_gap"].tolist()
    for n, gap in enumerate(gaps, 1):
        progress = n / case["settings"]["steps"]
        if gap >= bars[0 if progress < 0.33 else 1 if progress < 0.67 else 2]:
            return n
    raise AssertionError("the recorded run is too short to say")


@pytest.mark.parametrize(
    ("name", "bars"),
    [
        ("p03_exit_in_middle_phase", (9.0, 0.7, 0.7)),
        # Were literals work done, these would leave in passes 11, 5 and 10, not 14, 6 and 12.
        ("p06_constraints", (9.0, 0.75, 0.75)),
        ("p07_constraints_two_tokens_per_step", (9.0, 0.85, 0.85)),
        ("p07_constraints_two_tokens_per_step", (9.0, 9.0, 0.85)),
    ],
)
def test_literals_do_not_lower_the_bar(name, bars):
    case = next(case for case in CASES if case["name"] == name)
    early, middle, late = bars
    other = {**case["settings"], "thresholds": {"early": early, "mid": middle, "late": late}}
    assert len(steps_of({**case, "settings": other})) == their_exit(case, bars)
