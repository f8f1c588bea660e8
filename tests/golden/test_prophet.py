"""Early commit against runs of Prophet's own code: see PEERS.md."""

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

import lastword
from tests.golden.cases import FOLDER

CASES = json.loads((FOLDER / "peers_prophet.json").read_text())["cases"]


@cache
def recorded() -> dict[str, torch.Tensor]:
    return load_file(FOLDER / "peers_prophet.safetensors")


@cache
def model(name: str):
    return lastword.load(FOLDER / name, device="cpu")


def rule_of(case) -> lastword.Prophet:
    s = case["settings"]
    return lastword.Prophet(
        early=s["thresholds"]["early"],
        middle=s["thresholds"]["mid"],
        late=s["thresholds"]["late"],
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
    return list(lastword.decode(model(case["model"]), prompt, recipe))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    name, slots = case["name"], case["settings"]["gen_length"]
    steps = steps_of(case)
    before = [step.prediction.canvas.tokens[0, -slots:] for step in steps]
    theirs = [canvas[0, -slots:].long() for canvas in recorded()[f"{name}.trace"]]
    assert len(before) == len(theirs) == case["forward_calls"]
    assert all(torch.equal(a, b) for a, b in zip(before, theirs))
    assert torch.equal(steps[-1].canvas.tokens[0], recorded()[f"{name}.output"][0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_gap_is_theirs_at_every_pass(case):
    rule = rule_of(case)
    ours = [rule.lead(step.prediction, step.prediction.canvas).item() for step in steps_of(case)]
    assert ours == pytest.approx(recorded()[f"{case['name']}.region_gap"].tolist(), abs=1e-3)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_work_done_is_their_step_over_steps(case):
    """Exactly, where every pass fills an equal share; literals count as work done beforehand."""
    s = case["settings"]
    literals = len(s["constraints"] or {})
    for n, step in enumerate(steps_of(case)[:-1], 1):
        theirs = n / s["steps"]
        done = 1 - int(step.canvas.masked.sum()) / s["gen_length"]
        assert done == pytest.approx(theirs + literals / s["gen_length"])
