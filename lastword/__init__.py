"""lastword: predict how long a diffusion language model's answer will be before decoding it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lastword.version import __version__ as __version__

if TYPE_CHECKING:
    from lastword.api import Finish as Finish
    from lastword.api import Generation as Generation
    from lastword.api import generate as generate
    from lastword.api import predict_length as predict_length
    from lastword.api import stream as stream
    from lastword.calibration import Calibration as Calibration
    from lastword.calibration import Ratios as Ratios
    from lastword.calibration.fit import calibrate as calibrate
    from lastword.canvas.tokens import TokenIds as TokenIds
    from lastword.decoding.forward import Hooks as Hooks
    from lastword.decoding.loop import Step as Step
    from lastword.decoding.loop import decode as decode
    from lastword.decoding.sampling import RowGenerators as RowGenerators
    from lastword.decoding.sampling import Sampling as Sampling
    from lastword.errors import LastwordError as LastwordError
    from lastword.models.adapter import Adapter as Adapter
    from lastword.models.base import MaskPredictor as MaskPredictor
    from lastword.models.base import TextTokenizer as TextTokenizer
    from lastword.models.load import load as load
    from lastword.models.native import NativeModel as NativeModel
    from lastword.models.tokenizer import Tokenizer as Tokenizer
    from lastword.models.toy import Toy as Toy
    from lastword.policies.cache import Cache as Cache
    from lastword.policies.cache import DualCache as DualCache
    from lastword.policies.cache import FeatureCache as FeatureCache
    from lastword.policies.cache import NoCache as NoCache
    from lastword.policies.cache import PrefixCache as PrefixCache
    from lastword.policies.commit import CommitRule as CommitRule
    from lastword.policies.commit import Never as Never
    from lastword.policies.commit import Prophet as Prophet
    from lastword.policies.commit import StableMargin as StableMargin
    from lastword.policies.length.daedal import Daedal as Daedal
    from lastword.policies.length.fixed import Fixed as Fixed
    from lastword.policies.length.policy import LengthPolicy as LengthPolicy
    from lastword.policies.length.policy import Plan as Plan
    from lastword.policies.length.policy import Probe as Probe
    from lastword.policies.length.reread import Reread as Reread
    from lastword.policies.length.rho_eos import RhoEos as RhoEos
    from lastword.policies.length.secant import Secant as Secant
    from lastword.policies.length.survival import Calibrated as Calibrated
    from lastword.policies.length.survival import Survival as Survival
    from lastword.policies.length.survival import SurvivalAtStep as SurvivalAtStep
    from lastword.policies.length.wrappers import Budget as Budget
    from lastword.policies.length.wrappers import GrowWhenFull as GrowWhenFull
    from lastword.policies.length.wrappers import StopAtEnd as StopAtEnd
    from lastword.policies.unmask.local_leap import LocalLeap as LocalLeap
    from lastword.policies.unmask.rule import AtRandom as AtRandom
    from lastword.policies.unmask.rule import LargestMargin as LargestMargin
    from lastword.policies.unmask.rule import LowestEntropy as LowestEntropy
    from lastword.policies.unmask.rule import MostConfident as MostConfident
    from lastword.policies.unmask.rule import UnmaskRule as UnmaskRule
    from lastword.policies.unmask.schedule import Cosine as Cosine
    from lastword.policies.unmask.schedule import EqualShares as EqualShares
    from lastword.policies.unmask.schedule import Schedule as Schedule
    from lastword.policies.unmask.schedule import Timesteps as Timesteps
    from lastword.policies.unmask.slow_fast import SlowFast as SlowFast
    from lastword.policies.unmask.stochastic import CoinFlip as CoinFlip
    from lastword.policies.unmask.stochastic import MaskGit as MaskGit
    from lastword.policies.unmask.threshold import AboveThreshold as AboveThreshold
    from lastword.policies.unmask.threshold import EntropyBound as EntropyBound
    from lastword.policies.unmask.threshold import Factor as Factor
    from lastword.policies.unmask.threshold import LeftmostFirst as LeftmostFirst
    from lastword.recipe.recipe import Recipe as Recipe
    from lastword.recipe.registry import register as register
    from lastword.recipe.resolve import BeyondTrainingWarning as BeyondTrainingWarning
    from lastword.recipe.resolve import resolve as resolve
    from lastword.survival.conformal import conformal_factor as conformal_factor
    from lastword.survival.conformal import min_samples as min_samples
    from lastword.survival.conformal import upper_bound as upper_bound
    from lastword.survival.distribution import Cheapest as Cheapest
    from lastword.survival.distribution import LengthDistribution as LengthDistribution
    from lastword.survival.distribution import Mean as Mean
    from lastword.survival.distribution import Quantile as Quantile
    from lastword.survival.distribution import Scaled as Scaled
    from lastword.survival.interpretation import Auto as Auto
    from lastword.survival.interpretation import Boundary as Boundary
    from lastword.survival.interpretation import Choice as Choice
    from lastword.survival.interpretation import EndedBy as EndedBy
    from lastword.survival.interpretation import EndSignal as EndSignal
    from lastword.survival.interpretation import FirstBoundary as FirstBoundary
    from lastword.survival.interpretation import Hazard as Hazard
    from lastword.survival.interpretation import Interpretation as Interpretation
    from lastword.survival.interpretation import TurnEnd as TurnEnd
    from lastword.survival.interpretation import token_probabilities as token_probabilities
    from lastword.survival.plot import save_lengths as save_lengths
    from lastword.survival.plot import save_rows as save_rows
    from lastword.viz.frames import Frame as Frame

# Public names by module, imported on first use: `lastword --help` does not wait for torch.
_PUBLIC = {
    "api": ("Finish", "Generation", "generate", "predict_length", "stream"),
    "calibration": ("Calibration", "Ratios"),
    "calibration.fit": ("calibrate",),
    "canvas.tokens": ("TokenIds",),
    "decoding.forward": ("Hooks",),
    "decoding.loop": ("Step", "decode"),
    "decoding.sampling": ("RowGenerators", "Sampling"),
    "errors": ("LastwordError",),
    "models.adapter": ("Adapter",),
    "models.base": ("MaskPredictor", "TextTokenizer"),
    "models.load": ("load",),
    "models.native": ("NativeModel",),
    "models.tokenizer": ("Tokenizer",),
    "models.toy": ("Toy",),
    "policies.cache": ("Cache", "DualCache", "FeatureCache", "NoCache", "PrefixCache"),
    "policies.commit": ("CommitRule", "Never", "Prophet", "StableMargin"),
    "policies.length.daedal": ("Daedal",),
    "policies.length.fixed": ("Fixed",),
    "policies.length.policy": ("LengthPolicy", "Plan", "Probe"),
    "policies.length.reread": ("Reread",),
    "policies.length.rho_eos": ("RhoEos",),
    "policies.length.secant": ("Secant",),
    "policies.length.survival": ("Calibrated", "Survival", "SurvivalAtStep"),
    "policies.length.wrappers": ("Budget", "GrowWhenFull", "StopAtEnd"),
    "policies.unmask.local_leap": ("LocalLeap",),
    "policies.unmask.rule": ("AtRandom", "LargestMargin", "LowestEntropy", "MostConfident", "UnmaskRule"),
    "policies.unmask.schedule": ("Cosine", "EqualShares", "Schedule", "Timesteps"),
    "policies.unmask.slow_fast": ("SlowFast",),
    "policies.unmask.stochastic": ("CoinFlip", "MaskGit"),
    "policies.unmask.threshold": ("AboveThreshold", "EntropyBound", "Factor", "LeftmostFirst"),
    "recipe.recipe": ("Recipe",),
    "recipe.registry": ("register",),
    "recipe.resolve": ("BeyondTrainingWarning", "resolve"),
    "survival.conformal": ("conformal_factor", "min_samples", "upper_bound"),
    "survival.distribution": ("Cheapest", "LengthDistribution", "Mean", "Quantile", "Scaled"),
    "survival.interpretation": (
        "Auto",
        "Boundary",
        "Choice",
        "EndSignal",
        "EndedBy",
        "FirstBoundary",
        "Hazard",
        "Interpretation",
        "TurnEnd",
        "token_probabilities",
    ),
    "survival.plot": ("save_lengths", "save_rows"),
    "viz.frames": ("Frame",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
_SUBPACKAGES = {"models", "survival", "evaluate"}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(f"lastword.{_MODULE_OF[name]}"), name)
    if name in _SUBPACKAGES:
        return import_module(f"lastword.{name}")
    raise AttributeError(f"module 'lastword' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
