"""Which masks: rules that choose what to fill after a pass."""

from lastword.unmask.above_threshold import AboveThreshold as AboveThreshold
from lastword.unmask.at_random import AtRandom as AtRandom
from lastword.unmask.coin_flip import CoinFlip as CoinFlip
from lastword.unmask.cosine import Cosine as Cosine
from lastword.unmask.entropy_bound import EntropyBound as EntropyBound
from lastword.unmask.equal_shares import EqualShares as EqualShares
from lastword.unmask.factor import Factor as Factor
from lastword.unmask.largest_margin import LargestMargin as LargestMargin
from lastword.unmask.leftmost_first import LeftmostFirst as LeftmostFirst
from lastword.unmask.local_leap import LocalLeap as LocalLeap
from lastword.unmask.lowest_entropy import LowestEntropy as LowestEntropy
from lastword.unmask.mask_git import MaskGit as MaskGit
from lastword.unmask.most_confident import MostConfident as MostConfident
from lastword.unmask.rule import UnmaskRule as UnmaskRule
from lastword.unmask.schedule import Schedule as Schedule
from lastword.unmask.slow_fast import SlowFast as SlowFast
from lastword.unmask.timesteps import Timesteps as Timesteps
