"""lastword: know how long a diffusion language model's answer will be before it writes it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lastword.version import __version__

if TYPE_CHECKING:
    from lastword import models, survival
    from lastword.cache import DualCache, FeatureCache, NoCache, PrefixCache
    from lastword.calibration import calibrate
    from lastword.commit import Never, Prophet, StableMargin
    from lastword.decode import Step, decode
    from lastword.errors import LastwordError
    from lastword.generate import Finish, Generation, generate, predict_length
    from lastword.hooks import Hooks
    from lastword.length import (
        Budget,
        Calibrated,
        Daedal,
        Fixed,
        GrowWhenFull,
        Reread,
        RhoEos,
        Secant,
        StopAtEnd,
        Survival,
        SurvivalAtStep,
    )
    from lastword.models import Adapter, load
    from lastword.recipe import Recipe
    from lastword.sampling import Dice, Sampling
    from lastword.survival import (
        Auto,
        Boundary,
        Calibration,
        Cheapest,
        EndedBy,
        FirstBoundary,
        Hazard,
        LengthDistribution,
        Mean,
        Quantile,
        Scaled,
        TurnEnd,
        plot_lengths,
    )
    from lastword.tokens import TokenIds
    from lastword.unmask import (
        AboveThreshold,
        AtRandom,
        CoinFlip,
        Cosine,
        EntropyBound,
        EqualShares,
        Factor,
        LargestMargin,
        LeftmostFirst,
        LowestEntropy,
        MaskGit,
        MostConfident,
        SlowFast,
        Timesteps,
    )

# Where each public name lives. They are imported on first use, so that `lastword --help` does not
# wait for torch.
_HOMES = {
    "AboveThreshold": "unmask",
    "Adapter": "models",
    "AtRandom": "unmask",
    "Auto": "survival",
    "Boundary": "survival",
    "Budget": "length",
    "Calibrated": "length",
    "Calibration": "survival",
    "Cheapest": "survival",
    "CoinFlip": "unmask",
    "Cosine": "unmask",
    "Daedal": "length",
    "Dice": "sampling",
    "DualCache": "cache",
    "EndedBy": "survival",
    "EntropyBound": "unmask",
    "EqualShares": "unmask",
    "Factor": "unmask",
    "FeatureCache": "cache",
    "Finish": "generate",
    "FirstBoundary": "survival",
    "Fixed": "length",
    "Generation": "generate",
    "GrowWhenFull": "length",
    "Hazard": "survival",
    "Hooks": "hooks",
    "LargestMargin": "unmask",
    "LastwordError": "errors",
    "LeftmostFirst": "unmask",
    "LengthDistribution": "survival",
    "LowestEntropy": "unmask",
    "MaskGit": "unmask",
    "Mean": "survival",
    "MostConfident": "unmask",
    "Never": "commit",
    "NoCache": "cache",
    "PrefixCache": "cache",
    "Prophet": "commit",
    "Quantile": "survival",
    "Recipe": "recipe",
    "Reread": "length",
    "RhoEos": "length",
    "Sampling": "sampling",
    "Scaled": "survival",
    "Secant": "length",
    "SlowFast": "unmask",
    "StableMargin": "commit",
    "Step": "decode",
    "StopAtEnd": "length",
    "Survival": "length",
    "SurvivalAtStep": "length",
    "Timesteps": "unmask",
    "TokenIds": "tokens",
    "TurnEnd": "survival",
    "calibrate": "calibration",
    "decode": "decode",
    "generate": "generate",
    "load": "models",
    "plot_lengths": "survival",
    "predict_length": "generate",
}

__all__ = [
    "AboveThreshold",
    "Adapter",
    "AtRandom",
    "Auto",
    "Boundary",
    "Budget",
    "Calibrated",
    "Calibration",
    "Cheapest",
    "CoinFlip",
    "Cosine",
    "Daedal",
    "Dice",
    "DualCache",
    "EndedBy",
    "EntropyBound",
    "EqualShares",
    "Factor",
    "FeatureCache",
    "Finish",
    "FirstBoundary",
    "Fixed",
    "Generation",
    "GrowWhenFull",
    "Hazard",
    "Hooks",
    "LargestMargin",
    "LastwordError",
    "LeftmostFirst",
    "LengthDistribution",
    "LowestEntropy",
    "MaskGit",
    "Mean",
    "MostConfident",
    "Never",
    "NoCache",
    "PrefixCache",
    "Prophet",
    "Quantile",
    "Recipe",
    "Reread",
    "RhoEos",
    "Sampling",
    "Scaled",
    "Secant",
    "SlowFast",
    "StableMargin",
    "Step",
    "StopAtEnd",
    "Survival",
    "SurvivalAtStep",
    "Timesteps",
    "TokenIds",
    "TurnEnd",
    "__version__",
    "calibrate",
    "decode",
    "generate",
    "load",
    "models",
    "plot_lengths",
    "predict_length",
    "survival",
]


def __getattr__(name: str) -> Any:
    if name in ("models", "survival"):
        return import_module(f"lastword.{name}")
    if name in _HOMES:
        return getattr(import_module(f"lastword.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lastword' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """`lastword.decode` and `lastword.generate` are functions that live in files of the same name.

    Importing such a file binds the module to that name; this keeps it bound to the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("decode", "generate") and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
