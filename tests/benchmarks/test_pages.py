"""Pages keep to their kind: lessons teach, one page decides, measured pages say on top what to decide by."""

import re

import pytest

from benchmarks import kept, pages
from benchmarks.arms import DEFAULT, MODELS, recipe_of
from benchmarks.pages import DOCS, PLACE

MEASURED = sorted(path for path in (DOCS / "measured").glob("*.md") if path.name != "index.md")
LESSONS = sorted((DOCS / "learn").glob("*.md"))


def said(paths):
    return [pytest.param(path.read_text(), id=path.stem) for path in paths]


@pytest.mark.parametrize("text", said(MEASURED))
def test_a_measured_page_says_on_top_what_was_asked_what_came_and_what_to_decide(text):
    title, finding = (" ".join(part.split()) for part in text.split("\n\n")[:2])
    assert title.startswith("# ")
    assert re.findall(r"\*\*(\w[\w ]+)\*\*: ", finding) == ["Asked", "Came out", "Decide"]
    assert PLACE.search(text)


@pytest.mark.parametrize("text", said(MEASURED))
def test_a_measured_page_says_how_to_measure_again(text):
    assert re.search(r"`(python -m (benchmarks|training)|lastword bench|make )", text)


def test_the_index_lists_every_measured_page():
    text = (DOCS / "measured" / "index.md").read_text()
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\)", text, re.MULTILINE)) == [
        path.stem for path in MEASURED
    ]


def test_tables_of_results_stand_on_measured_pages_alone():
    elsewhere = [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if path.parent.name != "measured" and PLACE.search(path.read_text())
    ]
    assert elsewhere == []


def test_the_page_that_decides_is_short_and_has_no_results():
    text = (DOCS / "choose.md").read_text()
    assert len(text.split()) < 1000
    assert not re.search(r"\d%|\bp [=<\d]|\d points", text)


@pytest.mark.parametrize("text", said(LESSONS))
def test_a_lesson_is_short(text):
    assert len(text.splitlines()) <= 200


def test_the_front_table_takes_the_models_together_and_leaves_out_seconds_that_were_not_measured(
    monkeypatch,
):
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
