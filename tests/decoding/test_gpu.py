"""On a GPU: replayed passes write what watched ones write, and what cannot be captured says why."""

import logging
from dataclasses import replace

import pytest

import lastword
from tests.decoding.decoded import PROMPTS
from tests.golden.cases import FOLDER
from tests.laws.axes import CACHES, COMMITS, LENGTHS, RESIZING, RULES, SAMPLINGS, SLOW_FAST, recipe_of, tiny

pytestmark = pytest.mark.gpu

DUAL = lastword.DualCache()
GROWS = lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=40), increment=8, limit=64))
RECIPE = lastword.Recipe(length=GROWS, unmask=lastword.EntropyBound(1.0), cache=DUAL, block=8)


@pytest.fixture(scope="module", params=["llada-tiny-eos", "dream-tiny"])
def pair(request):
    """A model on the GPU, and the same on the CPU."""
    loaded = lastword.load(FOLDER / request.param, device="cuda", dtype="float32")
    return loaded, tiny(request.param)


def ledgers(model, recipe, prompts=PROMPTS, **settings):
    found = lastword.generate(model, prompts, recipe=recipe, **settings)
    return [(answer.canvas, answer.horizon, answer.probe_cost, answer.cost) for answer in found]


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize(
    "rule",
    [
        lastword.EntropyBound(1.0),
        lastword.MostConfident(lastword.EqualShares(2.0)),
        lastword.AboveThreshold(0.3),
        lastword.LeftmostFirst(lastword.AboveThreshold(0.3, max_tokens_per_step=1.5)),
        lastword.LocalLeap(0.3, relaxed_threshold=0.2),
        lastword.Factor(),
    ],
    ids=str,
)
def test_replayed_passes_write_what_watched_ones_write(rule, every, pair):
    model, _ = pair
    recipe = replace(RECIPE, unmask=rule, cache=lastword.DualCache(every))
    watched = ledgers(model, recipe, on_step=lambda step: step.prediction)
    assert ledgers(model, recipe) == watched
    assert ledgers(model, recipe) == watched  # the graph of the first call, and its memory
    assert ledgers(model, recipe, max_batch_size=2) == watched
    for index, prompt in enumerate(PROMPTS[:2]):
        assert ledgers(model, recipe, [prompt], seed=index) == [watched[index]]


def test_passes_are_replayed(pair):
    """Fewer steps than passes: the host looks at rows that wait for something else."""
    model, _ = pair
    recipe = replace(RECIPE, unmask=lastword.MostConfident())
    steps = list(lastword.decode(model, PROMPTS, recipe, use_cuda_graphs=True))
    assert any(step.details is None for step in steps)
    passes = max(done.cost.forward_passes for step in steps for done in step.finished)
    assert len(steps) < passes


@pytest.mark.parametrize(
    "changed",
    [
        {"unmask": lastword.AtRandom()},
        {"unmask": lastword.MaskGit()},
        {"unmask": lastword.CoinFlip()},
        {"unmask": lastword.LowestEntropy(lastword.Timesteps(2.0))},
    ],
    ids=str,
)
def test_parts_that_are_not_capturable_run_uncaptured_without_a_warning(changed, pair, caplog):
    model, _ = pair
    recipe = replace(RECIPE, length=lastword.Fixed(24), **changed)
    watched = ledgers(model, recipe, on_step=lambda step: step.prediction)
    with caplog.at_level(logging.WARNING, "lastword"):
        assert ledgers(model, recipe) == watched
    assert caplog.messages == []
    assert all(step.details is not None for step in lastword.decode(model, PROMPTS, recipe, use_cuda_graphs=True))


def test_an_error_of_a_captured_pass_is_raised(pair):
    class NeverAgain(lastword.UnmaskRule):
        def choose(self, prediction, open, clock, state):
            return open & (open.cumsum(-1) == 1) & clock.block_start[:, None], state

    with pytest.raises(lastword.errors.SettingError, match="NeverAgain chose no mask"):
        ledgers(pair[0], replace(RECIPE, unmask=NeverAgain()))


PARTS = (
    [{"length": length} for length in (*LENGTHS, *RESIZING)]
    + [{"unmask": rule} for rule in (*RULES, *SLOW_FAST)]
    + [{"cache": DUAL, "unmask": rule} for rule in RULES]
    + [{"commit": commit} for commit in COMMITS]
    + [{"cache": cache} for cache in CACHES]
    + [{"cache": cache, "sampling": sampling} for cache in (DUAL, CACHES[0]) for sampling in SAMPLINGS]
)


@pytest.mark.parametrize("choices", PARTS, ids=str)
def test_every_part_decodes_on_a_gpu(choices, pair):
    """Rows through fewer slots equal rows at once; without draws, those of the CPU."""
    recipe = recipe_of(**{"length": lastword.Fixed(11), "block": 4, **choices})
    if recipe is None:
        pytest.skip("parts that do not go together")
    model, on_cpu = pair
    found = ledgers(model, recipe)
    assert ledgers(model, recipe, max_batch_size=2) == found
    draws = recipe.sampling.temperature or any(
        name in recipe.label() for name in ("random", "coin", "maskgit", "order_temperature")
    )
    if not draws:
        assert found == ledgers(on_cpu, recipe)


def test_tensors_of_a_step_live_where_the_model_is(pair):
    model, _ = pair
    step = next(iter(lastword.decode(model, PROMPTS, RECIPE)))
    for tensor in (step.canvas.tokens, step.clock.step, step.cost.forward_passes, step.prediction.confidence):
        assert tensor.device.type == "cuda"
    assert step.finished == () or step.finished[0].canvas.tokens.is_cpu
