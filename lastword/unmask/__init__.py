"""Which masks: rules that choose what to fill after a pass."""

from lastword.unmask.above_threshold import AboveThreshold
from lastword.unmask.at_random import AtRandom
from lastword.unmask.coin_flip import CoinFlip
from lastword.unmask.cosine import Cosine
from lastword.unmask.entropy_bound import EntropyBound
from lastword.unmask.equal_shares import EqualShares
from lastword.unmask.factor import Factor
from lastword.unmask.largest_margin import LargestMargin
from lastword.unmask.leftmost_first import LeftmostFirst
from lastword.unmask.lowest_entropy import LowestEntropy
from lastword.unmask.mask_git import MaskGit
from lastword.unmask.most_confident import MostConfident
from lastword.unmask.rule import UnmaskRule
from lastword.unmask.schedule import Schedule
from lastword.unmask.slow_fast import SlowFast
from lastword.unmask.timesteps import Timesteps

__all__ = [
    "AboveThreshold",
    "AtRandom",
    "CoinFlip",
    "Cosine",
    "EntropyBound",
    "EqualShares",
    "Factor",
    "LargestMargin",
    "LeftmostFirst",
    "LowestEntropy",
    "MaskGit",
    "MostConfident",
    "Schedule",
    "SlowFast",
    "Timesteps",
    "UnmaskRule",
]
