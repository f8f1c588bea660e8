"""Identity: which run a file of answers belongs to, kept beside it in a small file of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lastword.batch.line import Form
from lastword.batch.survey import Survey
from lastword.engines.base import Engine
from lastword.errors import SettingError
from lastword.evaluate.records import recipe_data
from lastword.evaluate.run import about
from lastword.io.files import os_error_reason, write
from lastword.io.schema import read_json_object
from lastword.recipe.recipe import Recipe
from lastword.version import __version__

ENDING = ".run.json"
# What answers depend on, and how a message calls it. Rows, engines and machines are not among them.
WORDS = {
    "model": "model",
    "weights": "weights",
    "dtype": "dtype",
    "recipe": "recipe",
    "seed": "seed",
    "chat": "--chat",
    "sha256": "prompts",
    "form": "format of answers",
}


@dataclass(frozen=True)
class Identity:
    """What the answers of a run depend on, as data, and a short name made of it."""

    facts: dict[str, Any]

    @classmethod
    def of(
        cls,
        engine: Engine,
        name: str,
        recipe: Recipe,
        found: Survey,
        *,
        seed: int,
        chat: bool,
        form: Form,
    ) -> Identity:
        """Of a run that is about to begin; `recipe` is settled."""
        known = about(engine.model_info, name, recipe, seed) | {
            "chat": chat,
            "sha256": found.digest,
            "form": form,
        }
        return cls({**known, "recipe": recipe_data(recipe)})

    @property
    def run(self) -> str:
        """Twelve letters that every line of answers carries."""
        content = json.dumps([self.facts[field] for field in WORDS], sort_keys=True)
        return sha256(content.encode()).hexdigest()[:12]

    def check(self, target: Path, is_new: bool) -> None:
        """Refuse answers of another run, or of nobody's; where there are none, say whose they will be."""
        beside = path_of(target)
        if not is_new:
            other = _read(beside, target)
            if differing := [field for field in WORDS if other.get(field) != self.facts[field]]:
                raise SettingError(
                    f"{target} holds answers of another run: another {WORDS[differing[0]]}"
                    f"{self._told(other, differing[0])}; give another file with --out, ask as that run did, "
                    f"or move it and {beside.name} away"
                )
            return
        write(beside, json.dumps({"run": self.run, "lastword": __version__, **self.facts}, indent=1))

    def _told(self, other: dict[str, Any], field: str) -> str:
        then, now = (json.dumps(facts.get(field), sort_keys=True) for facts in (other, self.facts))
        return f" ({then:.300} then, {now:.300} now)"


def path_of(target: Path) -> Path:
    """Where the identity of a file of answers stands."""
    return target.with_name(target.name + ENDING)


def _read(path: Path, target: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (OSError, ValueError) as missing:
        raise SettingError(
            f"{target} is there already, and {path.name} beside it does not say which run it belongs to "
            f"({os_error_reason(missing)}); it was left as it is: give another file with --out, or move "
            "it away"
        ) from missing
