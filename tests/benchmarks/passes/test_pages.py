"""What is put into the folder of records is shown on the page."""

import shutil

import pytest

from benchmarks import pages
from benchmarks.passes.record import read


@pytest.fixture
def folder(monkeypatch, tmp_path):
    before = pages.BENCH / f"{pages.EMBEDDED_BEFORE}.json"
    shutil.copy(before, tmp_path)
    monkeypatch.setattr(pages, "BENCH", tmp_path)
    return tmp_path


def test_a_run_of_recipes_is_held_against_the_seconds_of_before(folder):
    before = read(folder / "embedded-before.json")
    assert len(before.lines) == 4 * 3  # models, and recipes that were timed then
    assert pages.bench_recipes() == "No run of recipes is kept yet."
    faster = [line.model_copy(update={"seconds": line.seconds / 4}) for line in before.lines]
    now = before.model_copy(update={"lines": faster, "settings": {"rows": 500, "slots": 64}})
    (folder / "embedded.json").write_text(now.to_json())
    shown = pages.bench_recipes()
    assert "**embedded**: NVIDIA H200, bfloat16, 500 rows through 64 slots." in shown
    assert shown.count(" 4.0 |\n") + shown.endswith(" 4.0 |") == 12
    queue = now.model_copy(update={"lines": now.lines[1:2]})  # without the fixed canvas
    (folder / "embedded.json").write_text(queue.to_json())
    assert pages.bench_recipes() == "No run of recipes is kept yet."
