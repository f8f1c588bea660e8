"""Every part makes its tensors where the model is: decoded on a device that there is none of."""

import pytest
import torch

import lastword
from tests.decoding.decoded import answers, static_shapes
from tests.decoding.fake_device import DEVICE, Away, Elsewhere, machine
from tests.laws.axes import SLOW_FAST, tiny

DUAL, TWO = lastword.DualCache(0), lastword.EqualShares(2.0)
GROWS = lastword.GrowWhenFull(lastword.Survival(limit=8), increment=2, limit=9)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [2]]
CHOICES = [
    {},
    {"cache": lastword.PrefixCache(2)},
    {"cache": lastword.FeatureCache(2, 2, 0.3)},
    {"cache": DUAL, "unmask": lastword.LowestEntropy(lastword.Timesteps(2.0))},
    {"cache": DUAL, "unmask": lastword.LargestMargin(lastword.Timesteps(2.0, keep_idle=True))},
    {"cache": DUAL, "unmask": lastword.MostConfident(TWO, order_temperature=0.5)},
    {"cache": DUAL, "unmask": lastword.AtRandom(TWO)},
    {"cache": DUAL, "unmask": lastword.CoinFlip(lastword.Timesteps(2.0))},
    {"cache": DUAL, "unmask": lastword.MaskGit(lastword.Cosine(2.0))},
    {"cache": DUAL, "unmask": lastword.EntropyBound(1.0)},
    {"cache": DUAL, "unmask": lastword.LeftmostFirst(lastword.AboveThreshold(0.3))},
    {"cache": DUAL, "unmask": lastword.Factor()},
    {"cache": DUAL, "unmask": lastword.LocalLeap(0.3, relaxed_threshold=0.2)},
    {"unmask": SLOW_FAST[0]},
    {"length": lastword.StopAtEnd(GROWS), "cache": DUAL},
    {"length": lastword.Budget(GROWS, max_passes=8), "cache": DUAL},
    {
        "length": lastword.Daedal(
            initial=4, limit=9, expansion_factor=3, eos_window=2, eos_threshold=0.0, low_threshold=0.9
        )
    },
    {"length": lastword.RhoEos(initial=4, limit=9)},
    {"length": lastword.Reread(lastword.Survival(9, interpretation=lastword.Auto()), increment=2)},
    {"length": lastword.SurvivalAtStep(1, lastword.Survival(9))},
    {"commit": lastword.Prophet(early_threshold=2.0, middle_threshold=1.0, late_threshold=0.5, literals=((-2, 11),))},
    {"commit": lastword.StableMargin("margin", start_threshold=1.5, end_threshold=0.1)},
    {"sampling": lastword.Sampling(temperature=0.8, top_p=0.9), "cache": DUAL},
    {"sampling": lastword.Sampling(temperature=0.8, top_k=9, score="draw")},
    {"sampling": lastword.Sampling(guidance=0.5)},
    {"sampling": lastword.Sampling(end_last=True), "cache": DUAL},
]


@pytest.fixture(autouse=True)
def as_if_there_were(monkeypatch):
    """A tensor of the device is no tensor of shapes alone."""
    plain = lambda value: isinstance(value, torch.Tensor)  # noqa: E731
    monkeypatch.setattr("lastword.models.base.is_plain_tensor", plain)
    monkeypatch.setattr("lastword.canvas.tokens.is_plain_tensor", plain)
    monkeypatch.setattr("lastword.canvas.contracts.is_plain_tensor", plain)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_every_part_decodes_where_the_model_is(choices):
    model = tiny(("llada-tiny-eos", "dream-tiny")[CHOICES.index(choices) % 2])
    recipe = lastword.Recipe(**{"length": lastword.Fixed(5), "block": 2, **choices})
    here = answers(model, recipe, PROMPTS)
    with static_shapes(True, DEVICE.type), machine():
        assert answers(Away(model), recipe, PROMPTS, max_batch_size=2) == here


def test_hooks_are_handed_tensors_of_the_device():
    """And may hand back what lies on the CPU."""

    def tokens(step, canvas):
        assert isinstance(canvas.tokens, Elsewhere) == (step is not None)
        return torch.where(canvas.masked, canvas.tokens, canvas.tokens * 0).cpu()

    def logits(step, canvas, columns, logits):
        assert isinstance(logits, Elsewhere)
        return logits

    recipe = lastword.Recipe(length=lastword.Fixed(3))
    hooks = lastword.Hooks(logits=logits, tokens=tokens)
    with machine():
        found = answers(Away(tiny("llada-tiny")), recipe, PROMPTS, hooks=hooks)
    assert [canvas for canvas, *_ in found] == [[0, 0, 0]] * len(PROMPTS)


def test_what_is_mixed_is_an_error_there():
    """What the tests above stand on."""
    with machine():
        away = torch.arange(3, device=DEVICE)
        assert isinstance(away + 1, Elsewhere)
        assert (away + away.to("cpu").to(DEVICE)).tolist() == [0, 2, 4]
        assert not isinstance(away.cpu(), Elsewhere)
        with pytest.raises(RuntimeError, match="on the device and on the CPU"):
            away + torch.arange(3)
        with pytest.raises(RuntimeError, match="on the device and on the CPU"):
            torch.where(away > 1, torch.zeros(3), 1.0)
