"""Pages keep to their kind: lessons teach, one page decides, measured pages say on top what to decide by."""

import io
import re
from contextlib import redirect_stdout

import pytest

from benchmarks.pages import DOCS, PLACE

MEASURED = sorted(path for path in (DOCS / "measured").glob("*.md") if path.name != "index.md")
LESSONS = sorted((DOCS / "learn").glob("*.md"))
PRINTS = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


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


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "printed"), [found for path in LESSONS for found in PRINTS.findall(path.read_text())]
)
def test_examples_of_lessons_print_what_is_shown(code, printed):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "example", "exec"), {})
    assert out.getvalue() == printed
