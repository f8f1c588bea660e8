"""Threshold, prefix cache and dual cache against runs of Fast-dLLM's own code: see PEERS.md."""

from functools import partial

import pytest
import torch

import lastword
from tests.golden.cases import checkpoint, computed_per_pass, peer_cases, recording

CASES = peer_cases("peers_fast_dllm_llada")
recorded = partial(recording, "peers_fast_dllm_llada")
CACHES = {"none": lastword.NoCache(), "prefix": lastword.PrefixCache(), "dual": lastword.DualCache()}


def recipe_of(case) -> lastword.Recipe:
    s = case["settings"]
    quota = lastword.MostConfident(lastword.EqualShares(s["gen_length"] / s["steps"]))
    threshold = s["threshold"]
    return lastword.Recipe(
        length=lastword.Fixed(s["gen_length"]),
        unmask=quota if threshold is None else lastword.AboveThreshold(threshold),
        cache=CACHES[s["cache"]],
        block=s["block_length"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    """The answer after each pass, and the columns that the pass computed."""
    name, slots = case["name"], case["settings"]["gen_length"]
    prompt = recorded()[f"{name}.prompt"].tolist()
    steps = list(lastword.decode(checkpoint(case["model"]), prompt, recipe_of(case), exceed_max_seq_len=True))
    ours = [step.canvas.tokens[0, step.canvas.start :] for step in steps]
    # Their loop runs a cached pass even when the full one finished the block: it changes nothing.
    after = [*recorded()[f"{name}.trace"][1:].long(), recorded()[f"{name}.output"].long()]
    spans = recorded()[f"{name}.trace_span"].tolist()
    passes = [
        (canvas[0, -slots:], last - first)
        for canvas, (first, last), count in zip(after, spans, case["commits_per_pass"], strict=True)
        if count
    ]
    assert len(ours) == len(passes) == case["forward_calls_without_idle"]
    assert all(torch.equal(canvas, theirs) for canvas, (theirs, _) in zip(ours, passes))
    assert computed_per_pass(steps) == [columns for _, columns in passes]
