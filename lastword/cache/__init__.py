"""What to recompute: caches of keys and values."""

from lastword.cache.cache import Cache
from lastword.cache.none import NoCache

__all__ = ["Cache", "NoCache"]
