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
    lastword.Secant(limit=20, initial=5, target_probability=0.3, tolerance=2, interpretation=lastword.Hazard()),
]
DAEDAL = lastword.Daedal(
    initial=6, limit=30, expansion_factor=4, eos_window=4, eos_threshold=0.3, expand_threshold=0.97, low_threshold=0.3
)
RESIZING = [
    DAEDAL,
    lastword.Daedal(
        initial=5,
        limit=13,
        expansion_factor=6,
        eos_window=2,
        eos_threshold=0.0,
        expand_threshold=1.0,
        low_threshold=0.9,
    ),
    lastword.RhoEos(initial=10, limit=40, expansion_factor=2),
    lastword.RhoEos(
        initial=24,
        limit=40,
        expansion_factor=4,
        signal="released",
        eos_window=8,
        scheduler="linear",
        max_adjust_steps=9,
    ),
    lastword.RhoEos(initial=12, limit=30, expansion_factor=3, rho_low=0.0, rho_high=0.0, scheduler="const"),
    lastword.GrowWhenFull(lastword.Fixed(5), increment=6, limit=30),
    lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=16), increment=4, limit=40)),
    lastword.GrowWhenFull(lastword.StopAtEnd(lastword.Fixed(7)), increment=1, limit=9),
    lastword.SurvivalAtStep(2, lastword.Survival(24)),
    lastword.SurvivalAtStep(0, lastword.Survival(16, lastword.Quantile(0.5), ends="any")),
    lastword.StopAtEnd(DAEDAL),
    lastword.Reread(lastword.Survival(24), increment=5),
    lastword.Budget(lastword.GrowWhenFull(lastword.Survival(16), increment=3, limit=40), max_passes=12),
    lastword.Reread(lastword.Survival(24, lastword.Quantile(0.3), interpretation=lastword.Auto())),
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
    for rule in (lastword.MostConfident, lastword.LargestMargin, lastword.LowestEntropy, lastword.AtRandom)
    for schedule in SCHEDULES
] + [
    lastword.MostConfident(order_temperature=0.5),
    lastword.CoinFlip(),
    lastword.CoinFlip(lastword.Timesteps(2.0)),
    lastword.AboveThreshold(0.3),
    lastword.AboveThreshold(0.3, max_tokens_per_step=1.5),
    lastword.LeftmostFirst(lastword.LowestEntropy(lastword.Timesteps(2.0, keep_idle=True))),
    lastword.Factor(),
    lastword.EntropyBound(1.0),
    lastword.MostConfident(lastword.Cosine(2.0)),
    lastword.MaskGit(),
    lastword.MaskGit(lastword.Cosine(3.0), choice_temperature=1.0),
]
RULES += [
    part()
    for part in PARTS["unmask"].values()
    if part is not lastword.SlowFast and not any(isinstance(rule, part) for rule in RULES)
]  # what is new, as it comes
SLOW_FAST = [
    lastword.SlowFast(high_confidence=0.7, min_confidence=0.5, exploration_steps=2),
    lastword.SlowFast(
        high_confidence=0.7, min_confidence=0.5, exploration_steps=2, stability_window=3, as_released=True
    ),
]
COMMITS = [
    lastword.Prophet(early_threshold=2.0, middle_threshold=1.0, late_threshold=0.5),
    lastword.Prophet(
        "margin", early_threshold=1.5, middle_threshold=0.8, late_threshold=0.4, answer_start=2, answer_length=3
    ),
    lastword.Prophet(
        early_threshold=2.0, middle_threshold=1.0, late_threshold=0.6, answer_start=-4, literals=((0, 9), (-2, 11))
    ),
    lastword.StableMargin(start_threshold=2.5, end_threshold=0.2),
    lastword.StableMargin("margin", start_threshold=1.5, end_threshold=0.1),
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
prompts = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=3) | st.just(UNEQUAL)


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
