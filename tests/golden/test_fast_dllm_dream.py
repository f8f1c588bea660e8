"""Fast-dLLM's Dream samplers against runs of their own code: see PEERS.md."""

from functools import partial

import pytest
import torch

import lastword
from tests.golden.cases import computed_per_pass, model, peer_cases, recording

CASES = peer_cases("peers_fast_dllm_dream")
recorded = partial(recording, "peers_fast_dllm_dream")
CACHES = {"none": lastword.NoCache(), "prefix": lastword.PrefixCache(), "dual": lastword.DualCache()}


def recipe_of(case) -> lastword.Recipe:
    s = case["settings"]
    pace = s["max_new_tokens"] / s["steps"]
    if s["cache"] == "none":  # a threshold under a quota
        unmask = lastword.AboveThreshold(s["threshold"], pace)
    elif s["alg"] == "confidence_threshold":
        unmask = lastword.LeftmostFirst(lastword.AboveThreshold(s["threshold"]))
    else:
        schedule = lastword.Timesteps(pace, keep_idle=True)
        unmask = lastword.LeftmostFirst(lastword.LowestEntropy(schedule))
    return lastword.Recipe(
        length=lastword.Fixed(s["max_new_tokens"]), unmask=unmask, cache=CACHES[s["cache"]], block=s["block_length"]
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    name = case["name"]
    prompt = recorded()[f"{name}.prompt"].tolist()
    steps = list(lastword.decode(model("dream"), prompt, recipe_of(case)))
    ours = [step.canvas.tokens for step in steps]
    theirs = [*recorded()[f"{name}.trace"][1:].long(), recorded()[f"{name}.output"].long()]
    assert len(ours) == len(theirs) == case["forward_calls"]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    spans = recorded()[f"{name}.trace_span"].tolist()
    assert computed_per_pass(steps) == [last - first for first, last in spans]
