"""The public names of lastword by module. `__init__.py` imports each on first use; type checkers read this file."""

from .api import (
    Finish as Finish,
    Generation as Generation,
    generate as generate,
    predict_length as predict_length,
    stream as stream,
)
from .calibration import Calibration as Calibration, Ratios as Ratios
from .calibration.fit import calibrate as calibrate
from .canvas.tokens import TokenIds as TokenIds
from .decoding.forward import Hooks as Hooks
from .decoding.loop import Step as Step, decode as decode
from .decoding.sampling import RowGenerators as RowGenerators, Sampling as Sampling
from .errors import LastwordError as LastwordError
from .models.adapter import Adapter as Adapter
from .models.base import MaskPredictor as MaskPredictor, TextTokenizer as TextTokenizer
from .models.load import load as load
from .models.native import NativeModel as NativeModel
from .models.tokenizer import Tokenizer as Tokenizer
from .models.toy import Toy as Toy
from .policies.cache import (
    Cache as Cache,
    DualCache as DualCache,
    FeatureCache as FeatureCache,
    NoCache as NoCache,
    PrefixCache as PrefixCache,
)
from .policies.commit import CommitRule as CommitRule, Never as Never, Prophet as Prophet, StableMargin as StableMargin
from .policies.length.daedal import Daedal as Daedal
from .policies.length.fixed import Fixed as Fixed
from .policies.length.policy import LengthPolicy as LengthPolicy, Plan as Plan, Probe as Probe
from .policies.length.reread import Reread as Reread
from .policies.length.rho_eos import RhoEos as RhoEos
from .policies.length.secant import Secant as Secant
from .policies.length.survival import Calibrated as Calibrated, Survival as Survival, SurvivalAtStep as SurvivalAtStep
from .policies.length.wrappers import Budget as Budget, GrowWhenFull as GrowWhenFull, StopAtEnd as StopAtEnd
from .policies.unmask.local_leap import LocalLeap as LocalLeap
from .policies.unmask.rule import (
    AtRandom as AtRandom,
    LargestMargin as LargestMargin,
    LowestEntropy as LowestEntropy,
    MostConfident as MostConfident,
    UnmaskRule as UnmaskRule,
)
from .policies.unmask.schedule import (
    Cosine as Cosine,
    EqualShares as EqualShares,
    Schedule as Schedule,
    Timesteps as Timesteps,
)
from .policies.unmask.slow_fast import SlowFast as SlowFast
from .policies.unmask.stochastic import CoinFlip as CoinFlip, MaskGit as MaskGit
from .policies.unmask.threshold import (
    AboveThreshold as AboveThreshold,
    EntropyBound as EntropyBound,
    Factor as Factor,
    LeftmostFirst as LeftmostFirst,
)
from .recipe.recipe import Recipe as Recipe
from .recipe.registry import register as register
from .recipe.resolve import BeyondTrainingWarning as BeyondTrainingWarning, resolve as resolve
from .survival.conformal import (
    conformal_factor as conformal_factor,
    min_samples as min_samples,
    upper_bound as upper_bound,
)
from .survival.distribution import (
    Cheapest as Cheapest,
    LengthDistribution as LengthDistribution,
    Mean as Mean,
    Quantile as Quantile,
    Scaled as Scaled,
)
from .survival.interpretation import (
    Auto as Auto,
    Boundary as Boundary,
    Choice as Choice,
    EndedBy as EndedBy,
    EndSignal as EndSignal,
    FirstBoundary as FirstBoundary,
    Hazard as Hazard,
    Interpretation as Interpretation,
    TurnEnd as TurnEnd,
    token_probabilities as token_probabilities,
)
from .survival.plot import save_lengths as save_lengths, save_rows as save_rows
from .version import __version__ as __version__
from .viz.frames import Frame as Frame
