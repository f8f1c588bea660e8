"""What a recipe is called beside its point in a figure: few have a name, so that all can be read."""

from __future__ import annotations

from lastword.decoding.sampling import Sampling
from lastword.policies.cache import DualCache, NoCache
from lastword.policies.commit import Never
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length

# The default, by whether it fills several tokens a pass and keeps a cache.
OURS = {
    (False, False): "our default",
    (True, False): "+ several a pass",
    (False, True): "+ cache",
    (True, True): "+ both",
}


def in_words(recipe: Recipe, slots: int) -> str | None:
    """Its name where the baseline is a fixed canvas of so many slots; None: it is one of many.

    >>> in_words(Recipe(length=Survival(256)), 256), in_words(Recipe(length=Survival(64)), 256)
    ('the paper', None)
    >>> in_words(Recipe(length=default_length(256), unmask=AboveThreshold(0.9), block=32), 256)
    '+ several a pass'
    """
    several = isinstance(recipe.unmask, AboveThreshold)
    if (recipe.commit, recipe.sampling) != (Never(), Sampling()):
        return None
    if not several and recipe.unmask != MostConfident():
        return None
    if recipe.length == default_length(slots) and recipe.cache in (NoCache(), DualCache()):
        return OURS[several, recipe.cache == DualCache()]
    if recipe.cache != NoCache():
        return None
    if isinstance(recipe.length, Daedal):
        return "DAEDAL" if several else None
    plain = {
        Fixed(slots): "fixed canvas",
        StopAtEnd(Fixed(slots)): "stop at end",
        Survival(slots): "the paper" if recipe.block is None else None,
    }
    return None if several else plain.get(recipe.length)
