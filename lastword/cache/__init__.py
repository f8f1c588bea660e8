"""What to recompute: caches of keys and values."""

from lastword.cache.cache import Cache
from lastword.cache.dual import DualCache
from lastword.cache.feature import FeatureCache
from lastword.cache.none import NoCache
from lastword.cache.prefix import PrefixCache

__all__ = ["Cache", "DualCache", "FeatureCache", "NoCache", "PrefixCache"]
