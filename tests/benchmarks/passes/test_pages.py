"""Tests of the tables of docs/measured/passes.md and docs/measured/seconds.md that are made from kept runs."""

import pytest

from benchmarks import pages
from benchmarks.passes.record import read


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder in place of the kept runs."""
    monkeypatch.setattr(pages, "BENCH", tmp_path)
    return tmp_path


def test_the_page_shows_the_seconds_of_every_kept_recipe():
    run = read(pages.BENCH / "embedded.json")
    seconds = {tuple(line.case.split(", ")): line.seconds for line in run.lines}
    models, recipes = (list(dict.fromkeys(names)) for names in zip(*seconds))
    assert recipes == ["fixed", "paper", "careful", "fast"]
    assert len(seconds) == len(models) * len(recipes) == 16
    head, _, *rows = pages.bench_recipes().splitlines()
    assert head == f"| recipe | {' | '.join(models)} |"
    for recipe, row in zip(recipes, rows, strict=True):
        cells = [f"{seconds[m, recipe]:.2f} ({seconds[m, 'fixed'] / seconds[m, recipe]:.1f}x)" for m in models]
        assert row == f"| {recipe} | {' | '.join(cells)} |"


def test_a_new_run_of_recipes_is_shown(folder):
    run = read(pages.RECORDS.parent / "bench" / "embedded.json")
    assert pages.bench_recipes() == "No run of recipes is kept yet."
    faster = [line.model_copy(update={"seconds": line.seconds / 4}) for line in run.lines]
    (folder / "embedded.json").write_text(run.model_copy(update={"lines": faster}).to_json())
    fixed = [line.seconds for line in faster if line.case.endswith(", fixed")]
    assert f"| fixed | {' | '.join(f'{seconds:.2f} (1.0x)' for seconds in fixed)} |" in pages.bench_recipes()


def test_a_run_without_the_fixed_canvas_has_no_speedups(folder):
    run = read(pages.RECORDS.parent / "bench" / "embedded.json")
    (folder / "embedded.json").write_text(run.model_copy(update={"lines": run.lines[1:2]}).to_json())
    assert pages.bench_recipes().splitlines() == [
        "| recipe | tiny-llada-base |", "|---|---:|", f"| paper | {run.lines[1].seconds:.2f} |",
    ]  # fmt: skip


def test_without_kept_runs_the_page_says_so(folder):
    assert pages.bench_steps() == "No run of whole answers is kept yet."
    assert pages.bench() == ""


def test_every_real_shape_has_a_table_of_passes_and_a_column_of_steps():
    for shape in pages.SHAPES:
        assert f"**{shape}**" in pages.bench()
        assert f"{shape}, seconds" in pages.bench_steps()
    eight = read(pages.BENCH / "llada-8b.json")
    lines = {(line.line, line.case): line for line in eight.lines}
    plain = lines["plain", "1024 slots, one token per forward pass"]
    assert f"| authors' loop, 1024 slots | {plain.seconds:,.3f} (" in pages.bench_steps()
    full = lines["passes", "decoding loop, 1024 slots"]
    row = f"| full pass, 1024 slots | {full.ms:,.2f} | {full.compute_share:.0%} | {full.memory_share:.0%} |  |"
    assert row in pages.bench()


def test_stored_weights_come_before_other_formats():
    """So that the steps of a recipe with fp8 weights do not replace those with stored weights."""
    text = pages.bench()
    first, second = (text.index(row) for row in ("| block, dual cache |", "| block, dual cache, fp8 weights |"))
    assert first < second
