"""Every arm of the study, a recipe with tags, and the groups that are measured together.

Arms of a single part change one axis of the plain recipe (fixed canvas of 256 slots, one token per forward pass).
No canvas has more than 256 slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lastword.errors import SettingError
from lastword.policies.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.policies.commit import CommitRule, Never, Prophet, StableMargin
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.reread import Reread
from lastword.policies.length.rho_eos import RhoEos
from lastword.policies.length.secant import Secant
from lastword.policies.length.survival import Survival, SurvivalAtStep
from lastword.policies.length.wrappers import GrowWhenFull, StopAtEnd
from lastword.policies.unmask.rule import AtRandom, LargestMargin, LowestEntropy, MostConfident, UnmaskRule
from lastword.policies.unmask.schedule import Cosine, EqualShares
from lastword.policies.unmask.slow_fast import SlowFast
from lastword.policies.unmask.stochastic import CoinFlip, MaskGit
from lastword.policies.unmask.threshold import AboveThreshold, EntropyBound, Factor, LeftmostFirst
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import Cheapest, Quantile
from lastword.survival.interpretation import Auto

SLOTS = 256
BASE = ("tiny-llada-base", "tiny-dream-base")
MODELS = (*BASE, "tiny-llada-instruct", "tiny-dream-instruct")
UNSEEN = "unseen"  # a split: the frozen test prompts after the first 500, decoded after the default was chosen
SEED = 1721
FRESH = f"seed {SEED}"  # a split: prompts of that seed, decoded after the fast recipe was chosen (decision 21)

# Tags of arms. OURS: our length policies. CANDIDATE: candidates for the default that also unmask several tokens or
# use a cache. PART: single parts and combinations, measured on the two base models. FAST: candidates for the fast
# recipe, all with the default length (decision 21).
OURS, CANDIDATE, PART, FAST = "ours", "candidate", "part", "fast"


@dataclass(frozen=True)
class Arm:
    """A recipe and the tags of the studies that measure it."""

    recipe: Recipe
    tags: frozenset[str] = frozenset()


def _arm(
    length: LengthPolicy,
    *tags: str,
    unmask: UnmaskRule = MostConfident(),
    commit: CommitRule = Never(),
    cache: Cache = NoCache(),
    block: int | None = None,
) -> Arm:
    return Arm(Recipe(length, unmask, commit, cache, block), frozenset(tags))


def _grow_stop(length: LengthPolicy) -> StopAtEnd:
    return StopAtEnd(GrowWhenFull(length, limit=SLOTS))


PLAIN, PREDICTED, STOP = Fixed(SLOTS), Survival(SLOTS), StopAtEnd(Fixed(SLOTS))
AUTO = Survival(SLOTS, interpretation=Auto())
AUTO_90, AUTO_95 = replace(AUTO, estimate=Quantile(0.9)), replace(AUTO, estimate=Quantile(0.95))
DAEDAL, RHO_EOS = Daedal(64, limit=SLOTS), RhoEos(64, limit=SLOTS)
THRESHOLD, BOUND, TWO = AboveThreshold(0.9), EntropyBound(0.1), MostConfident(EqualShares(2.0))
FEATURE = FeatureCache(25, response_interval=5, update_ratio=0.25)
DEFAULT = "auto, grow, stop"  # the length of `careful` and `fast`

ARMS: dict[str, Arm] = {
    "fixed 256": _arm(PLAIN, PART),
    # length: the paper, its peers, plain baselines
    "survival": _arm(PREDICTED, PART),
    "fixed 64": _arm(Fixed(64)),
    "fixed 96": _arm(Fixed(96)),
    "fixed 128": _arm(Fixed(128)),
    "fixed 192": _arm(Fixed(192)),
    "stop at end": _arm(STOP, PART, block=32),
    "DAEDAL": _arm(DAEDAL, PART, unmask=THRESHOLD, block=32),
    "rho-EOS": _arm(RHO_EOS, PART, unmask=THRESHOLD, block=32),
    "rho-EOS, released signal": _arm(replace(RHO_EOS, signal="released"), PART, unmask=THRESHOLD, block=32),
    "DAEDAL, one token per pass": _arm(DAEDAL, block=32),
    "rho-EOS, one token per pass": _arm(RHO_EOS, block=32),
    "survival, blocks": _arm(PREDICTED, PART, block=32),
    # length: ours
    "auto": _arm(AUTO, OURS, PART),
    "auto, quantile 0.9": _arm(AUTO_90, OURS),
    "auto, quantile 0.95": _arm(AUTO_95, OURS),
    "auto, cheapest 1000": _arm(replace(AUTO, estimate=Cheapest(1000.0)), OURS),
    "auto, grow, stop": _arm(_grow_stop(AUTO), OURS, PART, FAST, block=32),
    "auto, quantile 0.9, grow, stop": _arm(_grow_stop(AUTO_90), OURS, block=32),
    "auto, reread": _arm(Reread(AUTO), OURS, block=32),
    "auto, reread, grow, stop": _arm(_grow_stop(Reread(AUTO)), OURS, block=32),
    "auto, quantile 0.9, reread, grow, stop": _arm(_grow_stop(Reread(AUTO_90)), OURS, block=32),
    "secant": _arm(Secant(SLOTS, initial=128), PART),
    "survival, quantile 0.9": _arm(replace(PREDICTED, estimate=Quantile(0.9)), PART),
    "survival at step 32": _arm(SurvivalAtStep(32, PREDICTED), PART),
    "survival, grow when full": _arm(GrowWhenFull(PREDICTED, limit=SLOTS), PART, block=32),
    # which masks to fill
    "largest margin": _arm(PLAIN, PART, unmask=LargestMargin()),
    "lowest entropy": _arm(PLAIN, PART, unmask=LowestEntropy()),
    "at random": _arm(PLAIN, PART, unmask=AtRandom()),
    "coin flip": _arm(PLAIN, PART, unmask=CoinFlip()),
    "two tokens per pass": _arm(PLAIN, PART, unmask=TWO),
    "threshold 0.9": _arm(PLAIN, PART, unmask=THRESHOLD, block=32),
    "leftmost first, threshold 0.9": _arm(PLAIN, PART, unmask=LeftmostFirst(THRESHOLD), block=32),
    "factor 1": _arm(PLAIN, PART, unmask=Factor(1.0), block=32),
    "entropy bound 0.1": _arm(PLAIN, PART, unmask=BOUND),
    "entropy bound 0.1, by confidence": _arm(PLAIN, PART, unmask=replace(BOUND, order="confidence")),
    "entropy bound 0.1, by margin": _arm(PLAIN, PART, unmask=replace(BOUND, order="margin")),
    "SlowFast": _arm(PLAIN, PART, unmask=SlowFast()),
    "MaskGIT, cosine, two per pass": _arm(PLAIN, PART, unmask=MaskGit(Cosine(2.0))),
    # when to commit
    "Prophet": _arm(PLAIN, PART, commit=Prophet()),
    "stable margin": _arm(PLAIN, PART, commit=StableMargin()),
    # caches
    "prefix cache": _arm(PLAIN, PART, cache=PrefixCache(), block=32),
    "dual cache": _arm(PLAIN, PART, cache=DualCache(), block=32),
    "feature cache": _arm(PLAIN, PART, cache=FEATURE),
    # combinations
    "survival + two tokens per pass": _arm(PREDICTED, PART, unmask=TWO),
    "survival + threshold 0.9": _arm(PREDICTED, CANDIDATE, PART, unmask=THRESHOLD, block=32),
    "survival + factor": _arm(PREDICTED, PART, unmask=Factor(1.0), block=32),
    "survival + entropy bound": _arm(PREDICTED, PART, unmask=BOUND),
    "survival + SlowFast": _arm(PREDICTED, PART, unmask=SlowFast()),
    "survival + Prophet": _arm(PREDICTED, PART, commit=Prophet()),
    "survival + stable margin": _arm(PREDICTED, PART, commit=StableMargin()),
    "survival + dual cache": _arm(PREDICTED, PART, cache=DualCache(), block=32),
    "survival + threshold 0.9 + prefix cache": _arm(PREDICTED, PART, unmask=THRESHOLD, cache=PrefixCache(), block=32),
    "survival + threshold 0.9 + dual cache": _arm(PREDICTED, PART, unmask=THRESHOLD, cache=DualCache(), block=32),
    "survival + threshold 0.9 + feature cache": _arm(PREDICTED, PART, unmask=THRESHOLD, cache=FEATURE, block=32),
    "auto + threshold 0.9": _arm(AUTO, CANDIDATE, unmask=THRESHOLD, block=32),
    "auto, grow, stop + threshold 0.9": _arm(_grow_stop(AUTO), CANDIDATE, PART, FAST, unmask=THRESHOLD, block=32),
    "auto, reread, grow, stop + threshold 0.9": _arm(_grow_stop(Reread(AUTO)), CANDIDATE, unmask=THRESHOLD, block=32),
    "auto, grow, stop + threshold 0.9 + dual cache": _arm(
        _grow_stop(AUTO), CANDIDATE, PART, FAST, unmask=THRESHOLD, cache=DualCache(), block=32
    ),
    "auto, grow, stop + dual cache": _arm(_grow_stop(AUTO), CANDIDATE, PART, FAST, cache=DualCache(), block=32),
    "stop at end + threshold 0.9": _arm(STOP, CANDIDATE, PART, unmask=THRESHOLD, block=32),
    "stop at end + threshold 0.9 + dual cache": _arm(
        STOP, CANDIDATE, PART, unmask=THRESHOLD, cache=DualCache(), block=32
    ),
}
# The candidates for the fast recipe that are not defined above.
_RULES = {
    "": MostConfident(),
    " + threshold 0.9": THRESHOLD,
    **{f" + threshold {bar}": AboveThreshold(bar) for bar in (0.95, 0.97, 0.99)},
    **{f" + entropy bound {bound}": EntropyBound(bound) for bound in (0.05, 0.1, 0.2, 0.3)},
}
_CACHES = {"": NoCache(), " + dual cache": DualCache(), " + dual cache, prompt computed once": DualCache(0)}
for _rule, _unmask in _RULES.items():
    for _cache_title, _cache in _CACHES.items():
        _candidate = _arm(_grow_stop(AUTO), FAST, unmask=_unmask, cache=_cache, block=32)
        ARMS.setdefault(f"{DEFAULT}{_rule}{_cache_title}", _candidate)

# Names of arms in records of earlier versions, as patterns and replacements.
_RENAMED = (
    (r"\+ threshold(?= \+|$)", "+ threshold 0.9"),
    (r"prompt kept$", "prompt computed once"),
    (r"(one token|two tokens|two) a pass", r"\1 per pass"),
)

FIXED_MEANS = "fixed at each task's mean"  # of the survival arm's predictions: the paper's Table 3
FIXED_MEAN = "fixed at the mean"  # one number for all tasks
DRIFT = "drift"  # not an arm: the expected length at later steps, the paper's Table 6


def recipe_of(arm: str) -> Recipe:
    """Return the recipe of an arm."""
    if arm not in ARMS:
        raise SettingError(f"arm {arm!r} is unknown; the arms are {'; '.join(ARMS)}")
    return ARMS[arm].recipe


def current_name(arm: str) -> str:
    """Return the present name of an arm that a record names.

    >>> current_name("auto, grow, stop + threshold + dual cache, prompt kept")
    'auto, grow, stop + threshold 0.9 + dual cache, prompt computed once'
    """
    for pattern, name in _RENAMED:
        arm = re.sub(pattern, name, arm)
    return arm


def tagged(tag: str) -> tuple[str, ...]:
    """Return the arms with this tag, in the order of definition."""
    return tuple(name for name, arm in ARMS.items() if tag in arm.tags)


@dataclass(frozen=True)
class Group:
    """Arms that are measured on the same models and prompts."""

    arms: tuple[str, ...]
    models: tuple[str, ...] = MODELS
    split: str = "test"
    per_family: int = 500
    one_task_per_batch: bool = False  # so that the seconds of a batch belong to one task


_PEERS = ("DAEDAL, one token per pass", "rho-EOS", "rho-EOS, one token per pass")
GROUPS = {
    "paper": Group(
        ("fixed 256", "survival", FIXED_MEANS, FIXED_MEAN, DRIFT, "stop at end", "DAEDAL"),
        one_task_per_batch=True,
    ),
    "choose": Group(
        ("fixed 256", "survival", *tagged(OURS), *tagged(CANDIDATE)), MODELS, "validation", 300
    ),
    "lengths": Group((*tagged(OURS), *_PEERS, *tagged(CANDIDATE))),
    "beyond": Group(("fixed 64", "fixed 96", "fixed 128", "fixed 192", DEFAULT)),  # Table 7
    "confirm": Group(
        ("fixed 256", "survival", DEFAULT, f"{DEFAULT} + dual cache"), MODELS, UNSEEN, 700
    ),
    "peers": Group(
        (*_PEERS, "DAEDAL", f"{DEFAULT} + threshold 0.9"), MODELS[len(BASE) :], UNSEEN, 700
    ),
    # Timed: run it with one worker on an idle machine, with separate --out and --kept folders.
    "speed": Group(
        (
            "fixed 256", "survival", "DAEDAL", DEFAULT, f"{DEFAULT} + threshold 0.97", f"{DEFAULT} + threshold 0.9",
            f"{DEFAULT} + threshold 0.9 + dual cache",
        ),
        one_task_per_batch=True,
    ),
    "parts": Group(tagged(PART), BASE, per_family=300),
    "fast": Group(("fixed 256", *tagged(FAST)), MODELS, "validation", 300),  # benchmarks.fast runs it
}  # fmt: skip
