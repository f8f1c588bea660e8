"""What to recompute: caches of keys and values."""

from lastword.cache.cache import Cache as Cache
from lastword.cache.dual import DualCache as DualCache
from lastword.cache.feature import FeatureCache as FeatureCache
from lastword.cache.none import NoCache as NoCache
from lastword.cache.prefix import PrefixCache as PrefixCache
