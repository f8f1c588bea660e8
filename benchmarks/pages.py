"""Write the tables of docs from records: `python -m benchmarks.pages`.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written from records, the same
bytes every time. A test says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import lastword
from benchmarks.study import ARMS, BASE, MODELS, RECORDS, recipe_of
from lastword.eval.arms import mean_slots
from lastword.eval.journal import Record, read_records
from lastword.eval.pairing import answers
from lastword.eval.paper import paper_tables
from lastword.eval.table import table
from lastword.recipe import Recipe
from lastword.tasks import BENCHMARKS

DOCS = Path(__file__).parent.parent / "docs"
SPEED = RECORDS.parent / "speed"
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
PER_FAMILY = 300  # of the parts table: an arm that was asked more counts for these


@lru_cache(maxsize=1)
def study() -> list[Record]:
    """Every kept record of the study, models in our order."""
    return [r for model in MODELS for r in read_records(RECORDS / f"{model}.jsonl.gz")]


def families() -> str:
    """Accuracy on the fixed canvas, family by family."""
    lines = [
        f"| model | prompts of each | {' | '.join(BENCHMARKS)} | mean |",
        "|---|---:|" + "---:|" * (len(BENCHMARKS) + 1),
    ]
    for model in MODELS:
        shares = accuracy(model)
        cells = [*shares.values(), sum(shares.values()) / len(shares)]
        lines.append(
            f"| {model} | {asked(model)} | {' | '.join(f'{cell:.3f}' for cell in cells)} |"
        )
    return "\n".join(lines)


def accuracy(model: str) -> dict[str, float]:
    """Share of right answers on the fixed canvas of 256, one token a pass, by family."""
    records = _of_arm(model, "fixed 256")
    scores = {f: [r["score"] for r in records if r["task"] == f] for f in BENCHMARKS}
    return {family: sum(mine) / len(mine) for family, mine in scores.items()}


def asked(model: str) -> int:
    """How many prompts of each family that is."""
    return len(_of_arm(model, "fixed 256")) // len(BENCHMARKS)


def canvas() -> str:
    """Fixed, predicted and fixed at the mean prediction."""
    records, titles = [], {}
    for model in MODELS:
        predictions = _of_arm(model, "survival")
        mean = Recipe(length=lastword.Fixed(mean_slots(predictions)))
        named = {
            "fixed 256": recipe_of("fixed 256"),
            "survival": recipe_of("survival"),
            "fixed at the mean prediction": mean,
        }
        for title, recipe in named.items():
            titles[_text(recipe)] = title
            records += _of(model, recipe)
    return table(records, titles)


def parts() -> str:
    """Every decoding part that was measured, alone and together, on the base pair."""
    return _by_title(BASE, PER_FAMILY)


def lengths() -> str:
    """Ways to choose a length on the instruct pair, where the paper's product cuts answers."""
    return _by_title([model for model in MODELS if model not in BASE], 500)


def _by_title(models: Sequence[str], per_family: int) -> str:
    """The arms of the study in their order, on the first prompts; those that were asked all of them."""
    titles = {_text(recipe_of(arm)): arm for arm in ARMS}
    records = []
    for model in models:
        for arm in ARMS:
            mine = [r for r in _of(model, recipe_of(arm)) if r["place"] < per_family]
            if len(mine) == per_family * len(BENCHMARKS):
                records += mine
    return table(records, titles)


def paper() -> str:
    """The paper's tables, seconds from the speed records."""
    return "\n\n".join(made.markdown() for made in paper_tables(study(), read_records(SPEED)))


TABLES: dict[str, Callable[[], str]] = {
    "families": families,
    "canvas": canvas,
    "parts": parts,
    "lengths": lengths,
    "paper": paper,
}


def written(page: str) -> str:
    """The page with its tables as the records have them."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


PAGES = [DOCS / name for name in ("choose.md", "embedded.md", "results.md")]


def _of_arm(model: str, arm: str) -> list[Record]:
    return _of(model, recipe_of(arm))


def _of(model: str, recipe: Recipe) -> list[Record]:
    return _answered().get((model, _text(recipe)), [])


@lru_cache(maxsize=1)
def _answered() -> dict[tuple[str, str], list[Record]]:
    """Answers to test prompts by model and recipe."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in answers(study()):
        found.setdefault((record["model"], json.dumps(record["recipe"])), []).append(record)
    return found


def _text(recipe: Recipe) -> str:
    return json.dumps(json.loads(recipe.to_json()))


def main() -> None:
    """Write every page."""
    for path in PAGES:
        path.write_text(written(path.read_text()))
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
