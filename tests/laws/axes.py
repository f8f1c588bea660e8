"""What the laws are tried on: parts of every axis, prompts, models."""

from functools import cache

from hypothesis import strategies as st

import lastword
from lastword.errors import SettingError
from lastword.recipe.registry import PARTS
from tests.golden.cases import FOLDER

MODELS = ["llada-tiny-eos", "llada-tiny", "dream-tiny"]


@cache
def tiny(name):
    """A golden checkpoint as it says of itself; `tests.golden.cases.model` knows its turn ends too."""
    return lastword.load(FOLDER / name, device="cpu")


# Lengths that never grow
LENGTHS = [
    lastword.Fixed(7),
    lastword.Survival(limit=16),
    lastword.Survival(limit=12, estimate=lastword.Quantile(0.8)),
    lastword.StopAtEnd(lastword.Fixed(14)),
    lastword.Secant(limit=20, initial=5, enough=0.3, within=2, reading=lastword.Hazard()),
]
DAEDAL = lastword.Daedal(initial=6, limit=30, by=4, window=4, enough=0.3, keep_growing=0.97, lost=0.3)
RESIZING = [
    DAEDAL,
    lastword.Daedal(initial=5, limit=13, by=6, window=2, enough=0.0, keep_growing=1.0, lost=0.9),
    lastword.RhoEos(initial=10, limit=40, unit=2),
    lastword.RhoEos(initial=24, limit=40, unit=4, signal="released", window=8, pace="linear", passes=9),
    lastword.RhoEos(initial=12, limit=30, unit=3, low=0.0, high=0.0, pace="const"),
    lastword.GrowWhenFull(lastword.Fixed(5), by=6, limit=30),
    lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=16), by=4, limit=40)),
    lastword.GrowWhenFull(lastword.StopAtEnd(lastword.Fixed(7)), by=1, limit=9),
    lastword.SurvivalAtStep(2, lastword.Survival(24)),
    lastword.SurvivalAtStep(0, lastword.Survival(16, lastword.Quantile(0.5), ends="any")),
    lastword.StopAtEnd(DAEDAL),
    lastword.Reread(lastword.Survival(24), by=5),
    lastword.Budget(lastword.GrowWhenFull(lastword.Survival(16), by=3, limit=40), passes=12),
    lastword.Reread(lastword.Survival(24, lastword.Quantile(0.3), reading=lastword.Auto())),
    lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Reread(lastword.Survival(16)), limit=24)),
]
SCHEDULES = [
    lastword.EqualShares(),
    lastword.EqualShares(2.5),
    lastword.Timesteps(1.5),
    lastword.Timesteps(0.7, keep_idle=True),
]
RULES = [
    rule(schedule)
    for rule in (
        lastword.MostConfident,
        lastword.LargestMargin,
        lastword.LowestEntropy,
        lastword.AtRandom,
    )
    for schedule in SCHEDULES
] + [
    lastword.MostConfident(order_temperature=0.5),
    lastword.CoinFlip(),
    lastword.CoinFlip(lastword.Timesteps(2.0)),
    lastword.AboveThreshold(0.3),
    lastword.AboveThreshold(0.3, pace=1.5),
    lastword.LeftmostFirst(lastword.LowestEntropy(lastword.Timesteps(2.0, keep_idle=True))),
    lastword.Factor(),
    lastword.EntropyBound(1.0),
    lastword.MostConfident(lastword.Cosine(2.0)),
    lastword.MaskGit(),
    lastword.MaskGit(lastword.Cosine(3.0), noise=1.0),
]
RULES += [
    part()
    for part in PARTS["unmask"].values()
    if part is not lastword.SlowFast and not any(isinstance(rule, part) for rule in RULES)
]  # what is new, as it comes
SLOW_FAST = [
    lastword.SlowFast(sure=0.7, reach=0.5, explore=2),
    lastword.SlowFast(sure=0.7, reach=0.5, explore=2, history=3, as_released=True),
]
COMMITS = [
    lastword.Prophet(early=2.0, middle=1.0, late=0.5),
    lastword.Prophet("margin", early=1.5, middle=0.8, late=0.4, answer_start=2, region=3),
    lastword.Prophet(early=2.0, middle=1.0, late=0.6, answer_start=-4, literals=((0, 9), (-2, 11))),
    lastword.StableMargin(start=2.5, end=0.2),
    lastword.StableMargin("margin", start=1.5, end=0.1),
]
CACHES = [
    lastword.NoCache(),
    lastword.PrefixCache(),
    lastword.DualCache(),
    lastword.DualCache(0),
    lastword.PrefixCache(2),
    lastword.FeatureCache(7, 3, 0.3),
    lastword.FeatureCache(2, 3, 0.0),
    lastword.FeatureCache(3, 4, 0.25),  # a quarter of 3 slots is none: such a row idles
]
COMMITS += [
    part()
    for part in PARTS["commit"].values()
    if part is not lastword.Never and not any(isinstance(rule, part) for rule in COMMITS)
]
CACHES += [part() for part in PARTS["cache"].values() if not any(isinstance(c, part) for c in CACHES)]
SAMPLINGS = [
    lastword.Sampling(),
    lastword.Sampling(temperature=0.8),
    lastword.Sampling(temperature=0.5, top_p=0.9, top_k=20, score="draw"),
    lastword.Sampling(guidance=0.7),
    lastword.Sampling(forbid_end=True),
    lastword.Sampling(end_last=True),
]
BLOCKS = [None, 1, 4, 7, 32]

# Every row padded differently, each block out of step: what chance finds too seldom.
UNEQUAL = [[293, 170, 195, 181, 26, 70, 351, 346, 298], [7], [1, 251, 110, 248, 72]]
prompts = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=3) | st.just(
    UNEQUAL
)


def recipe_of(**choices):
    """A recipe, or None where the parts do not go together: tests/recipe/test_composition.py says why."""
    try:
        return lastword.Recipe(**choices)
    except SettingError:
        return None


def recipes(lengths):
    """Recipes of these lengths and any other parts; every other one commits early."""
    return st.builds(
        recipe_of,
        length=st.sampled_from(lengths),
        unmask=st.sampled_from([*RULES, *SLOW_FAST, *SLOW_FAST]),
        commit=st.just(lastword.Never()) | st.sampled_from(COMMITS),
        cache=st.sampled_from(CACHES),
        block=st.sampled_from(BLOCKS),
        sampling=st.sampled_from(SAMPLINGS),
    ).filter(bool)
