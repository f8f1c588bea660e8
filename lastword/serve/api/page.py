"""The page at `/`: one static file, with the player of replays put into it."""

from __future__ import annotations

from functools import cache

from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import DEFAULT, PARTS, RECIPES, SHORTHANDS
from lastword.tasks import BENCHMARKS
from lastword.tasks.frozen import load_frozen
from lastword.version import __version__
from lastword.viz.replay import RUNS, for_script, inlined, player

OWN = "the server's"  # what the page calls a recipe that has no name
PLACE = 3  # of the example among each family's test prompts: none was picked for its answer


@cache
def page(recipe: Recipe | None = None) -> str:
    """The whole page as HTML; `recipe` is the server's own. Nothing else in it depends on the server."""
    recipes = {name: named.description for name, named in RECIPES.items()}
    usual = DEFAULT
    if recipe is not None:
        usual = next((name for name in RECIPES if Recipe.named(name) == recipe), OWN)
        recipes.setdefault(usual, "What whoever runs this server chose.")  # who has no key sees it too
    known = {
        "version": __version__,
        "recipes": recipes,
        "recipe": usual,
        "lengths": [*SHORTHANDS["length"], *PARTS["length"]],
        "examples": {family: load_frozen("test", family)[PLACE].prompt for family in BENCHMARKS},
        "replay": player(),
        "runs": RUNS,
    }
    return inlined("page/index.html", "lastword.serve.api").replace("{{known}}", for_script(known))
