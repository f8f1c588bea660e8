"""Both stages of Daedal against runs of DAEDAL's own code: see PEERS.md."""

from functools import partial

import pytest

import lastword
from tests.golden.cases import checkpoint, peer_cases, recording

CASES = peer_cases("peers_daedal")
recorded = partial(recording, "peers_daedal")


def recipe_of(case) -> lastword.Recipe:
    s = case["settings"]
    return lastword.Recipe(
        length=lastword.Daedal(
            initial=s["initial_gen_length"],
            limit=s["max_gen_length"],
            expansion_factor=s["expansion_factor"],
            eos_window=s["eos_check_tokens"],
            eos_threshold=s["eos_confidence_threshold"],
            expand_threshold=s["expand_eos_confidence_threshold"],
            low_threshold=s["low_conf_threshold"],
        ),
        unmask=lastword.AboveThreshold(s["high_conf_threshold"]),
        block=s["block_length"],
    )


def run(case):
    prompts = recorded()[f"{case['name']}.prompt"].tolist()
    return list(lastword.decode(checkpoint(case["model"]), prompts, recipe_of(case), exceed_max_seq_len=True))


def theirs(case, row) -> list[list[int]]:
    """The row's answer before every pass of stage 2, then as it ended."""
    name, first = case["name"], case["prompt_length"]
    stage2 = slice(case["stage1_passes"], None)
    trace, lengths = (recorded()[f"{name}.{part}"][stage2] for part in ("trace", "row_lengths"))
    canvases = [canvas[row, first : int(n[row])].tolist() for canvas, n in zip(trace, lengths)]
    end = first + case["final_length"][row]
    return [*canvases, recorded()[f"{name}.output"][row, first:end].tolist()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    steps = run(case)
    check_stage_one(case, steps[0])
    canvases = [steps[0].prediction.canvas, *(step.canvas for step in steps)]
    assert len(steps) == case["stage2_passes"]
    for row in range(case["batch"]):
        assert [canvas.answer_ids(row) for canvas in canvases] == theirs(case, row)


def check_stage_one(case, step):
    settings = case["settings"]
    assert step.plan.horizon.tolist() == case["length_after_stage1"]
    tail = [full - slots for full, slots in zip(case["length_after_eos_tail"], step.plan.horizon)]
    assert step.plan.end_suffix.tolist() == tail
    # A row is probed at each length it had, but not at its limit, where their code looks once more
    # in vain; nor for the sake of a longer row of its batch.
    grown = [slots - settings["initial_gen_length"] for slots in case["length_after_stage1"]]
    probes = [
        growth // settings["expansion_factor"] + (slots < settings["max_gen_length"])
        for growth, slots in zip(grown, case["length_after_stage1"])
    ]
    assert step.probe_cost.forward_passes.tolist() == probes
    at_limit = case["length_after_stage1"] == [settings["max_gen_length"]]
    assert max(probes) + at_limit == case["stage1_passes"]
