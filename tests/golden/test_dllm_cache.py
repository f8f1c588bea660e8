"""FeatureCache against runs of dLLM-Cache's own code: see PEERS.md."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import lastword
from lastword.canvas.canvas import Clock
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs
from tests.golden.cases import checkpoint, peer_cases, recording

CASES = peer_cases("peers_dllm_cache")
recorded = partial(recording, "peers_dllm_cache")
UNGUIDED = [case for case in CASES if "cfg_scale" not in case["settings"]]
(GUIDED,) = [case for case in CASES if "cfg_scale" in case["settings"]]


def recipe_of(case, **choices) -> lastword.Recipe:
    s = case["settings"]
    recipe = lastword.Recipe(
        length=lastword.Fixed(s["gen_length"]),
        unmask=lastword.MostConfident(lastword.EqualShares(s["gen_length"] / s["steps"])),
        cache=lastword.FeatureCache(s["Kp"], s["Kr"], s["rho"]),
        block=s["block_length"],
    )
    return recipe.with_choices(**choices)


@pytest.mark.parametrize("case", UNGUIDED, ids=lambda case: case["name"])
def test_pass_by_pass(case):
    name = case["name"]
    prompt = recorded()[f"{name}.prompt"].tolist()
    steps = list(lastword.decode(checkpoint(case["model"]), prompt, recipe_of(case)))
    ours = [step.canvas.tokens for step in steps]
    theirs = [*recorded()[f"{name}.trace"][1:].long(), recorded()[f"{name}.output"].long()]
    assert len(ours) == len(theirs) == case["forward_calls"]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    # Where the mask itself is likeliest theirs proposes it; ours takes the next best.
    proposals, confidences = recorded()[f"{name}.proposal"], recorded()[f"{name}.confidence"]
    for step, proposal, confidence in zip(steps, proposals, confidences):
        read = step.prediction.read_mask[0] & (proposal != case["mask_id"])
        ours = step.prediction.columns.scatter(step.prediction.confidence)[0]
        assert torch.allclose(ours[read], confidence[read], atol=1e-3)


class StoredGuidance:
    """Their guidance: the two branches' difference, refreshed in the first passes, then at intervals.

    The promptless branch keeps a memory of its own, whose intervals count its own passes.
    """

    def __init__(self, case):
        self.cache, self.settings = recipe_of(case).cache, case["settings"]
        self.model = checkpoint(case["model"])
        self.forward = Forward(self.model, lastword.Sampling(), lastword.RowGenerators([0]))
        self.cost = BatchCost.zeros(1)
        self.storage, self.clock, self.difference = None, None, None

    def __call__(self, step, canvas, columns, logits):
        if step < 5 or step % self.settings["cfg_interval"] == 0:
            hidden = torch.where(canvas.answer, canvas.tokens, canvas.ids.mask)
            promptless = replace(canvas, tokens=hidden)
            self.storage = self.storage or self.cache.create_storage(canvas)
            self.clock = (self.clock or Clock.start(promptless)).tick(promptless, None)
            stale = self.cache.stale(promptless, self.clock)
            inputs = PassInputs(Columns.from_mask(canvas.answer), stale=stale)
            other, self.cost = self.forward(promptless, inputs, self.cost, storage=self.storage)
            self.difference = torch.zeros(canvas.width, logits.shape[-1])
            index = columns.index[0]
            self.difference[index] = logits[0] - other.logits[0][index - canvas.start]
        return logits + self.settings["cfg_scale"] * self.difference[columns.index[0]]


def test_stored_guidance_is_a_hook_away():
    """Not built in: it reuses a difference of whole logits for columns the canvas no longer agrees on.

    It also has no answer for a block that opens between refreshes, whose columns were not read: here
    the second block opens on a refresh.
    """
    name, hook = GUIDED["name"], StoredGuidance(GUIDED)
    prompt = recorded()[f"{name}.prompt"].tolist()
    steps = list(lastword.decode(hook.model, prompt, recipe_of(GUIDED), hooks=lastword.Hooks(logits=hook)))
    theirs = [
        canvas.long()
        for canvas in recorded()[f"{name}.trace"]
        if not (canvas[:, : len(prompt[0])] == GUIDED["mask_id"]).all()
    ]
    theirs = [*theirs[1:], recorded()[f"{name}.output"].long()]
    assert len(steps) == len(theirs)
    assert len(steps) + int(hook.cost.forward_passes) == GUIDED["forward_calls"]
    assert all(torch.equal(step.canvas.tokens, canvas) for step, canvas in zip(steps, theirs))


def test_our_guidance_computes_the_promptless_branch_in_full():
    scale = lastword.Sampling(guidance=GUIDED["settings"]["cfg_scale"])
    prompt = recorded()[f"{GUIDED['name']}.prompt"].tolist()
    model, recipes = checkpoint(GUIDED["model"]), [recipe_of(GUIDED), recipe_of(GUIDED, sampling=scale)]
    cost = [lastword.generate(model, prompt, recipe=recipe)[0].cost for recipe in recipes]
    whole = len(prompt[0]) + GUIDED["settings"]["gen_length"]
    assert cost[1].forward_passes == cost[0].forward_passes
    assert cost[1].tokens_computed == cost[0].tokens_computed + cost[0].forward_passes * whole
