"""All parts and recipes by name."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError, WrongTypeError
from lastword.policies.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.policies.commit import CommitRule, Never, Prophet, StableMargin
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.reread import Reread
from lastword.policies.length.rho_eos import RhoEos
from lastword.policies.length.secant import Secant
from lastword.policies.length.survival import Calibrated, Survival, SurvivalAtStep
from lastword.policies.length.wrappers import Budget, GrowWhenFull, StopAtEnd
from lastword.policies.unmask.local_leap import LocalLeap
from lastword.policies.unmask.rule import AtRandom, LargestMargin, LowestEntropy, MostConfident, UnmaskRule
from lastword.policies.unmask.schedule import Cosine, EqualShares, Schedule, Timesteps
from lastword.policies.unmask.slow_fast import SlowFast
from lastword.policies.unmask.stochastic import CoinFlip, MaskGit
from lastword.policies.unmask.threshold import AboveThreshold, EntropyBound, Factor, LeftmostFirst
from lastword.survival.distribution import Cheapest, Mean, Quantile, Scaled
from lastword.survival.interpretation import Auto, Boundary, EndedBy, FirstBoundary, Hazard, Interpretation, TurnEnd
from lastword.validation import short_repr


def _by_name(*classes: type[Any]) -> dict[str, type[Any]]:
    return {cls.name: cls for cls in classes}


PARTS: dict[str, dict[str, type[Any]]] = {
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
CONTRACTS: dict[str, type[Any]] = {
    "length": LengthPolicy,
    "unmask": UnmaskRule,
    "commit": CommitRule,
    "cache": Cache,
    "sampling": Sampling,
    "schedule": Schedule,
    "interpretation": Interpretation,
}
REREGISTERED: list[str] = []  # names whose class was replaced, so that recipes parsed earlier hold the old class
PartClass = TypeVar("PartClass", bound=type)


def register(cls: PartClass) -> PartClass:
    """Register a user-defined part class under its `name`, so that recipes with it can be saved and loaded.

    Use it as a decorator of the class. It applies to this process and to workers that import the class; programs that
    read records of the part must register it first. Registering a class of the same name and module again, as a
    notebook cell that is run twice does, replaces the earlier class.
    """
    kinds = {axis: kind for axis, kind in CONTRACTS.items() if axis != "sampling"}
    axis = next((axis for axis, kind in kinds.items() if isinstance(cls, type) and issubclass(cls, kind)), None)
    params = vars(cls).get("__dataclass_params__") if axis else None  # of the class itself, not of a base class
    if axis is None or params is None or not params.frozen or any(field.name == "name" for field in fields(cls)):
        raise WrongTypeError(
            f"register was given {short_repr(cls)}; give a frozen dataclass with a ClassVar `name`, derived from one "
            f"of {', '.join(kind.__name__ for kind in kinds.values())}"
        )
    name = vars(cls).get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]{0,59}", name):
        raise SettingError(
            f"{cls.__name__} has the name {short_repr(name)}; give it a name of lower-case letters, digits "
            'and dashes: name: ClassVar[str] = "my-rule"'
        )
    known = PARTS[axis].get(name)
    same_class = known and (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
    if name in SHORTHANDS.get(axis, {}) or (known and not same_class):
        raise SettingError(f"there is already a {axis} called {name!r}; choose another name")
    PARTS[axis][name] = cls
    if known is not None:
        REREGISTERED.append(name)
    return cls


def default_length(limit: int | None = None) -> LengthPolicy:
    """Return the default length policy, the cheapest without loss of accuracy on four models.

    It plans with one probe, adds a block while an answer has not ended, and removes the slots after its end. The
    paper's policy is `Survival()`. docs/decisions/0016-default-length.md has the measurements.
    """
    return StopAtEnd(GrowWhenFull(Survival(limit, interpretation=Auto()), limit=limit))


# Names for combinations of parts. They are parsed but never written: to_text writes the combination.
SHORTHANDS = {"length": {"default": default_length}}


class NamedRecipe(NamedTuple):
    """The purpose and the parts of a named recipe."""

    description: str
    choices: dict[str, Any]


# Plain decoding, as in the code of LLaDA and Dream: one token per pass, everything recomputed.
PLAIN: dict[str, Any] = {"unmask": MostConfident(), "commit": Never(), "cache": NoCache(), "sampling": Sampling()}
RECIPES = {
    "careful": NamedRecipe(
        "One token per forward pass on a canvas of the predicted length.", PLAIN | {"length": default_length()}
    ),
    "fast": NamedRecipe(
        "The same canvas, all confident tokens in one forward pass: a sixth of the estimated time for 0.4 to 0.7 "
        "points of accuracy.",
        PLAIN | {"length": default_length(), "unmask": AboveThreshold(0.97)},  # docs/decisions/0021-fast-recipe.md
    ),
    "paper": NamedRecipe(
        "As in the survival paper: the mean length, one token per forward pass, one block.",
        PLAIN | {"length": Survival()},
    ),
    "fixed": NamedRecipe(
        "The baseline: a canvas of the model's default size, one token per forward pass.", PLAIN | {"length": Fixed()}
    ),
}
DEFAULT_RECIPE = "careful"

# Names in the papers and in other libraries, for which error messages suggest a part.
ALIASES = {
    "most-confident": ("low_confidence", "maskgit_plus", "confidence"),
    "largest-margin": ("topk_margin", "margin"),
    "lowest-entropy": ("entropy",),
    "at-random": ("random",),
    "coin-flip": ("origin",),
    "equal-shares": ("linear",),
    "quantile": ("smartcrop",),
    "threshold": ("confidence_threshold", "above_threshold"),
    "entropy-bound": ("eb_sampler", "eb"),
    "slow-fast": ("slow_fast_sampling", "slowfast"),
    "stable-margin": ("sched",),
    "prefix": ("prefix_cache",),
    "dual": ("dual_cache",),
    "feature": ("dllm_cache", "feature_cache"),
}


def import_modules(names: Sequence[str]) -> None:
    """Import modules by name, for example ones that register parts; they may be in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingError(
                f"--import {name} was given, and the module cannot be imported ({error}); give the name of a module "
                "in the current folder or on PYTHONPATH, without .py"
            ) from error
