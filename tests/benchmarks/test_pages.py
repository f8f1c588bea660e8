"""Measured pages are listed, hold all tables of results, and their front table is computed from records."""

import re

from benchmarks import kept, pages
from benchmarks.arms import DEFAULT, MODELS, recipe_of
from benchmarks.pages import DOCS, PLACE

MEASURED = sorted(path for path in (DOCS / "measured").glob("*.md") if path.name != "index.md")


def test_the_index_lists_every_measured_page():
    text = (DOCS / "measured" / "index.md").read_text()
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\)", text, re.MULTILINE)) == [path.stem for path in MEASURED]


def test_tables_of_results_stand_on_measured_pages_alone():
    elsewhere = [
        path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "measured" and PLACE.search(path.read_text())
    ]
    assert elsewhere == []


def test_the_front_table_takes_the_models_together_and_leaves_out_seconds_that_were_not_measured(monkeypatch):
    """Made of the few records that were timed alone; DAEDAL's seconds are taken away from one model."""

    def answers(model, recipe, folder):
        untimed = (model, recipe, folder) == (MODELS[1], recipe_of("DAEDAL"), kept.SPEED)
        return [] if untimed else kept.answers_of(model, recipe, folder=kept.SPEED)

    monkeypatch.setattr(pages, "answers_of", answers)
    rows = [line.strip("| ").split(" | ") for line in pages.front().splitlines()[2:6]]
    ours, fixed = (
        [answer for model in MODELS for answer in kept.answers_of(model, recipe, folder=kept.SPEED)]
        for recipe in (recipe_of(DEFAULT), recipe_of("fixed 256"))
    )
    right = sum(answer.score for answer in ours) / len(ours)
    work = [
        sum(getattr(answer, name) for answer in ours) / sum(getattr(answer, name) for answer in fixed)
        for name in ("forward_passes", "tokens_computed")
    ]
    time = [sum(answer.batch_seconds for answer in arm) for arm in (ours, fixed)]
    times = f"{time[0] / len(ours):.1f} ({time[1] / time[0]:.1f}x)"
    assert rows[3][1:] == [f"{right:.1%}", *(f"{share:.2f}" for share in work), times]
    assert rows[2][0].startswith("DAEDAL")
    assert len(rows[2]) == 4  # nothing in the last cell
    assert rows[0][2:4] == ["1.00", "1.00"]
