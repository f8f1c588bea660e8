"""The page at `/`: one static file, with the player of replays put into it."""

from __future__ import annotations

from functools import cache

from lastword.recipe.names import DEFAULT, PARTS, RECIPES, SHORTHANDS
from lastword.replay.file import RUNS, for_script, inlined, player
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.version import __version__

PLACE = 3  # of the example among each family's test prompts: none was picked for its answer


@cache
def page() -> str:
    """The whole page as HTML. Nothing in it depends on the model or on a request."""
    known = {
        "version": __version__,
        "recipes": {name: named.says for name, named in RECIPES.items()},
        "recipe": DEFAULT,
        "lengths": [*SHORTHANDS["length"], *PARTS["length"]],
        "examples": {family: load_frozen("test", family)[PLACE].prompt for family in BENCHMARKS},
        "replay": player(),
        "runs": RUNS,
    }
    return inlined("page/index.html", "lastword.serve.api").replace("{{known}}", for_script(known))
