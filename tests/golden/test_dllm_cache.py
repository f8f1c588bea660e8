"""FeatureCache against runs of dLLM-Cache's own code: see PEERS.md."""

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

import lastword
from tests.golden.cases import FOLDER

CASES = json.loads((FOLDER / "peers_dllm_cache.json").read_text())["cases"]
UNGUIDED = [case for case in CASES if "cfg_scale" not in case["settings"]]


@cache
def recorded() -> dict[str, torch.Tensor]:
    return load_file(FOLDER / "peers_dllm_cache.safetensors")


@cache
def model(name: str):
    return lastword.load(FOLDER / name, device="cpu")


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
    steps = list(lastword.decode(model(case["model"]), prompt, recipe_of(case)))
    ours = [step.canvas.tokens for step in steps]
    theirs = [*recorded()[f"{name}.trace"][1:].long(), recorded()[f"{name}.output"].long()]
    assert len(ours) == len(theirs) == case["forward_calls"]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    for step, confidence in zip(steps, recorded()[f"{name}.confidence"]):
        read = step.prediction.covers[0]
        assert torch.allclose(step.prediction.confidence[0, read], confidence[read], atol=1e-3)
