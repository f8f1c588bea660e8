"""The choices of a decoding: the value, the names, the text grammar, what goes together, settling."""

from lastword.recipe.names import register as register
from lastword.recipe.recipe import Recipe as Recipe
from lastword.recipe.settling import BeyondTrainingWarning as BeyondTrainingWarning
from lastword.recipe.settling import settle as settle
