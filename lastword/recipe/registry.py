"""All parts and named recipes by name."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError, WrongTypeError
from lastword.policies.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.policies.commit import CommitRule, Never, Prophet, StableMargin
from lastword.policies.length.calibrated import Calibrated
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.reread import Reread
from lastword.policies.length.rho_eos import RhoEos
from lastword.policies.length.secant import Secant
from lastword.policies.length.survival import Survival, SurvivalAtStep
from lastword.policies.length.wrappers import Budget, GrowWhenFull, StopAtEnd
from lastword.policies.unmask.coin_flip import CoinFlip
from lastword.policies.unmask.entropy_bound import EntropyBound
from lastword.policies.unmask.local_leap import LocalLeap
from lastword.policies.unmask.mask_git import MaskGit
from lastword.policies.unmask.ranked import AtRandom, LargestMargin, LowestEntropy, MostConfident
from lastword.policies.unmask.rule import UnmaskRule
from lastword.policies.unmask.schedule import Cosine, EqualShares, Schedule, Timesteps
from lastword.policies.unmask.slow_fast import SlowFast
from lastword.policies.unmask.threshold import AboveThreshold, Factor, LeftmostFirst
from lastword.survival.estimate import Cheapest, Mean, Quantile, Scaled
from lastword.survival.interpretation import (
    Auto,
    Boundary,
    EndedBy,
    FirstBoundary,
    Hazard,
    Interpretation,
    TurnEnd,
)
from lastword.validation import short_repr

Part = Any  # a frozen dataclass of one of the axes below


def _by_name(*classes: type[Part]) -> dict[str, type[Part]]:
    return {cls.name: cls for cls in classes}


# The first field of a part is what "name:value" sets.
PARTS: dict[str, dict[str, type[Part]]] = {
    "length": _by_name(
        Budget, Calibrated, Daedal, Fixed, GrowWhenFull, Reread, RhoEos, Secant, StopAtEnd, Survival,
        SurvivalAtStep,
    ),
    "unmask": _by_name(
        AboveThreshold, AtRandom, CoinFlip, EntropyBound, Factor, LargestMargin, LeftmostFirst, LocalLeap,
        LowestEntropy, MaskGit, MostConfident, SlowFast,
    ),
    "commit": _by_name(Never, Prophet, StableMargin),
    "cache": _by_name(DualCache, FeatureCache, NoCache, PrefixCache),
    "sampling": _by_name(Sampling),
    "schedule": _by_name(Cosine, EqualShares, Timesteps),
    "estimate": _by_name(Cheapest, Mean, Quantile, Scaled),
    "interpretation": _by_name(Auto, Boundary, EndedBy, FirstBoundary, Hazard, TurnEnd),
}  # fmt: skip


CONTRACTS: dict[str, type] = {
    "length": LengthPolicy,
    "unmask": UnmaskRule,
    "commit": CommitRule,
    "cache": Cache,
    "schedule": Schedule,
    "interpretation": Interpretation,
}
REREGISTERED: list[
    str
] = []  # names that mean another class than before: what was read by them is out of date
PartClass = TypeVar("PartClass", bound=type)


def register(cls: PartClass) -> PartClass:
    """Know a part of your own by the `name` it says, so that recipes with it can be written and read.

    Put it above the class, as a decorator. It holds in this process and in workers that import the class:
    records name the part, and whoever reads them registers it first. Registered again under its name, as
    when a notebook's cell is run again, a class takes the place of the one before.
    """
    axis = next((axis for axis, kind in CONTRACTS.items() if _is_a(cls, kind)), None)
    if axis is None or not _is_frozen_dataclass(cls):
        raise WrongTypeError(
            f"register was given {short_repr(cls)}; give a frozen dataclass whose name is a ClassVar, of "
            "one of "
            f"these kinds: {', '.join(kind.__name__ for kind in CONTRACTS.values())}"
        )
    name = vars(cls).get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]{0,59}", name):
        raise SettingError(
            f"{cls.__name__} is called {short_repr(name)}; let it say a name of small letters, digits and "
            "dashes: "
            'name: ClassVar[str] = "my-rule"'
        )
    known = PARTS[axis].get(name)
    if name in SHORTHANDS.get(axis, {}) or (known and _path(known) != _path(cls)):
        raise SettingError(f"there is a {axis} called {name!r} already; choose another name")
    PARTS[axis][name] = cls
    if known is not None:
        REREGISTERED.append(name)
    return cls


def _is_a(cls: object, kind: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, kind)


def _is_frozen_dataclass(cls: Any) -> bool:
    """By its own decorator, not its parent's: fields of its own would not be kept."""
    own = vars(cls).get("__dataclass_params__")
    return own is not None and own.frozen and all(field.name != "name" for field in fields(cls))


def _path(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def default_length(limit: int | None = None) -> LengthPolicy:
    """The plan that costs least without costing accuracy, on four models' validation prompts.

    One probe read for what it is, a block more where the answer has not ended, none behind its end. The
    paper's own is `Survival()`. docs/decisions/0016-default-length.md has the figures.
    """
    return StopAtEnd(GrowWhenFull(Survival(limit, interpretation=Auto()), limit=limit))


# Names for parts put together. They are read and never written: what was read says what it is made of.
SHORTHANDS = {"length": {"default": default_length}}


class NamedRecipe(NamedTuple):
    """A recipe that goes by a name: what it is for, and what it chooses on every axis."""

    description: str
    choices: dict[str, Part]


# One token a pass, everything computed anew: what the authors of LLaDA and Dream do.
PLAIN: dict[str, Part] = {
    "unmask": MostConfident(),
    "commit": Never(),
    "cache": NoCache(),
    "sampling": Sampling(),
}
RECIPES = {
    "careful": NamedRecipe(
        "One token a pass on a canvas of the predicted length: nothing is given up for speed.",
        PLAIN | {"length": default_length()},
    ),
    "fast": NamedRecipe(
        "The same canvas, every sure token in one pass: a sixth of the estimated time for half a point.",
        PLAIN | {"length": default_length(), "unmask": AboveThreshold(0.97)},  # decision 21
    ),
    "paper": NamedRecipe(
        "The survival paper's: the mean of its product, one token a pass, the whole answer one block.",
        PLAIN | {"length": Survival()},
    ),
    "fixed": NamedRecipe(
        "Every slot the model is made for, one token a pass: the baseline to compare with.",
        PLAIN | {"length": Fixed()},
    ),
}
DEFAULT_RECIPE = "careful"  # what `Recipe()` is, and what decodes where nothing was said

# What the field calls them.
ALIASES = {
    "low_confidence": "most-confident",
    "maskgit_plus": "most-confident",
    "confidence": "most-confident",
    "topk_margin": "largest-margin",
    "margin": "largest-margin",
    "entropy": "lowest-entropy",
    "random": "at-random",
    "origin": "coin-flip",
    "linear": "equal-shares",
    "smartcrop": "quantile",
    "confidence_threshold": "threshold",
    "above_threshold": "threshold",
    "eb_sampler": "entropy-bound",
    "eb": "entropy-bound",
    "slow_fast_sampling": "slow-fast",
    "slowfast": "slow-fast",
    "sched": "stable-margin",
    "prefix_cache": "prefix",
    "dual_cache": "dual",
    "dllm_cache": "feature",
    "feature_cache": "feature",
}
