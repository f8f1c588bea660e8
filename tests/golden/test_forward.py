"""Our forward passes against logits recorded from the authors' modelling code."""

import pytest
import torch

import lastword
from lastword.survival.interpretation import Hazard
from tests.golden.cases import cases, model

FORWARD = [case for family in ("llada", "dream") for case in cases(family, "logits")]
PROBES = [case for case in FORWARD if "survival" in case.facts]


def aligned(case):
    """Dream's output at a column predicts the next one; ours stands where it predicts."""
    raw = case.tensor("logits")
    return raw if case.family == "llada" else torch.cat((raw[:, :1], raw[:, :-1]), dim=1)


@pytest.mark.parametrize("case", FORWARD, ids=lambda case: f"{case.family}-{case.name}")
def test_logits_agree(case):
    tokens, mask = case.tensor("input_ids"), case.tensor("attention_mask")
    valid = torch.ones_like(tokens).bool() if mask is None else mask.bool()
    read = torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)
    ours = model(case.family)(tokens, read, valid=None if mask is None else valid)
    # Padding positions carry nothing, and Dream reads a column from the one before it.
    spoken = valid
    if case.family == "dream":
        spoken = valid & torch.nn.functional.pad(valid, (1, 0), value=True)[:, :-1]
    assert (ours - aligned(case)).abs()[spoken].max() < 1e-3


@pytest.mark.parametrize("case", PROBES, ids=lambda case: f"{case.family}-{case.name}")
def test_survival_curve_agrees(case):
    expected = case.facts["survival"]
    prompt = case.tensor("input_ids")[0, : case.facts["prompt_length"]]
    lengths = lastword.predict_length(
        model(case.family), prompt, limit=case.facts["masks"], interpretation=Hazard(), exceed_max_seq_len=True
    )
    torch.testing.assert_close(lengths.hazard, case.tensor("eos_prob", "survival"), atol=1e-5, rtol=0)
    torch.testing.assert_close(lengths.survival, case.tensor("S", "survival"), atol=1e-5, rtol=0)
    assert lengths.mean.item() == pytest.approx(expected["expected_length"], abs=1e-3)

    survival = lastword.Survival(limit=case.facts["masks"])
    answer = lastword.generate(model(case.family), prompt, length=survival, exceed_max_seq_len=True)
    assert answer.horizon == expected["predicted_length"]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_survival_is_recorded_for_most_forward_cases(family):
    assert len([case for case in PROBES if case.family == family]) >= 4
