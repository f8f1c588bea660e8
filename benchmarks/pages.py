"""Write the tables of docs from records: `python -m benchmarks.pages`.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written from records, the same
bytes every time. A test says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from benchmarks.study import ARMS, BASE, MODELS, RECORDS, recipe_of
from lastword.eval.arms import Arm, arms_of, recipes_of
from lastword.eval.journal import Record, read_records
from lastword.eval.paper import paper_tables
from lastword.eval.table import table
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
    for arms in arms_of(study()):
        whole = [arm for arm in arms.canvases.values() if _tasks(arm) == set(BENCHMARKS)]
        mean = min(whole, key=lambda arm: arm.slots or 0)
        named = {"fixed 256": arms.fixed, "survival": arms.survival}
        for title, arm in (named | {"fixed at the mean prediction": mean}).items():
            if arm is not None:
                titles[_text(arm.recipe)] = title
                records += arm.records
    return table(records, titles)


def parts() -> str:
    """Every decoding part that was measured, alone and together, on the base pair."""
    titles = {_text(json.loads(recipe_of(arm).to_json())): arm for arm in ARMS}
    order = list(titles)
    records = [
        r
        for r in study()
        if r["model"] in BASE and r["kind"] == "answer" and r["split"] == "test"
        if r["place"] < PER_FAMILY and _text(r["recipe"]) in titles
    ]
    records.sort(key=lambda r: (MODELS.index(r["model"]), order.index(_text(r["recipe"]))))
    return table(records, titles)


def lengths() -> str:
    """Ways to choose a length on the instruct pair, where the paper's product cuts answers."""
    titles = {_text(json.loads(recipe_of(arm).to_json())): arm for arm in ARMS}
    order = list(titles)
    found = [
        (model, order.index(_text(arm.recipe)), arm.records)
        for model in MODELS
        if model not in BASE
        for arm in recipes_of([r for r in study() if r["model"] == model])
        if _text(arm.recipe) in titles and len(arm.records) >= 5 * PER_FAMILY
    ]
    found.sort(key=lambda one: (MODELS.index(one[0]), one[1]))
    return table([r for _, _, mine in found for r in mine], titles)


def paper() -> str:
    """The paper's tables, seconds from the speed records."""
    timed = read_records(SPEED) if SPEED.is_dir() else []
    return "\n\n".join(made.markdown() for made in paper_tables([*study(), *timed]))


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


def pages() -> Iterable[Path]:
    """Those with tables of ours."""
    return [path for path in sorted(DOCS.glob("*.md")) if PLACE.search(path.read_text())]


def _of_arm(model: str, arm: str) -> Sequence[Record]:
    wanted = _text(json.loads(recipe_of(arm).to_json()))
    mine = recipes_of([r for r in study() if r["model"] == model])
    return next((one.records for one in mine if _text(one.recipe) == wanted), [])


def _tasks(arm: Arm) -> set[str]:
    return {record["task"] for record in arm.records}


def _text(recipe: object) -> str:
    return json.dumps(recipe)


def main() -> None:
    """Write every page."""
    for path in pages():
        path.write_text(written(path.read_text()))
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
