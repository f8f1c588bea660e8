"""Tests of the pages with measured results: the index, and tables that are computed from the kept records."""

import re
from statistics import fmean

import pytest

from benchmarks import kept, pages
from benchmarks.arms import BASE, DEFAULT, GROUPS, MODELS, UNSEEN, recipe_of
from benchmarks.pages import DOCS, PLACE
from lastword.evaluate.tables import on_shared_samples, paired_p

MEASURED = sorted(path for path in (DOCS / "measured").glob("*.md") if path.name != "index.md")
COSTS = ("forward_passes", "tokens_computed")


def rows_of(table):
    """Return the cells of each row of a Markdown table, without its head."""
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    return rows[2:]


def all_models(arm, folder):
    return [answer for model in MODELS for answer in kept.answers_of(model, recipe_of(arm), folder=folder)]


def ratio(answers, base, cost):
    """Return the total cost of answers as a share of that of others."""
    return sum(getattr(answer, cost) for answer in answers) / sum(getattr(answer, cost) for answer in base)


def seconds(answers):
    return fmean(answer.share_of_time for answer in answers)


def test_the_index_lists_every_measured_page():
    text = (DOCS / "measured" / "index.md").read_text()
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\)", text, re.MULTILINE)) == [path.stem for path in MEASURED]


def test_only_measured_pages_and_decisions_have_tables_of_results():
    places = ("measured", "decisions")
    others = [
        path for path in sorted(DOCS.rglob("*.md")) if path.parent.name not in places and PLACE.search(path.read_text())
    ]
    assert others == []


def test_the_table_of_the_readme_shows_means_over_all_models():
    table = pages.front()
    rows = rows_of(table)
    assert [row[0] for row in rows] == [pages.TITLES[arm] for arm in pages.FRONT]
    assert "`fast`" in [row[0] for row in rows]
    for arm, row in zip(pages.FRONT, rows, strict=True):
        answers = all_models(arm, kept.BATCH_SPEED)
        times = []
        for folder, digits in ((kept.SPEED, 2), (kept.BATCH_SPEED, 4)):
            fixed, timed = (seconds(all_models(name, folder)) for name in ("fixed 256", arm))
            times.append(f"{timed:.{digits}f} ({fixed / timed:.1f}x)")
        assert row[1:] == [
            f"{100 * fmean(answer.score for answer in answers):.1f}%",
            *(f"{fmean(getattr(answer, cost) for answer in answers):,.0f}" for cost in COSTS), *times,
        ]  # fmt: skip
        assert {(answer.hardware, answer.dtype) for answer in answers} == {("NVIDIA H200", "bfloat16")}
    assert "GPU: 1,250 test prompts per model, bfloat16" in table
    assert "CPU: 15 prompts per model, one core of an Intel Xeon, float32" in table


@pytest.mark.parametrize("folder", [kept.SPEED, kept.GPU_SPEED, kept.BATCH_SPEED], ids=lambda folder: folder.name)
def test_a_table_of_seconds_shows_the_speedup_of_each_model(folder):
    rows = {row[0]: row[1:] for row in rows_of(pages.speed(folder))}
    arms = [arm for arm in GROUPS["speed"].arms if all_models(arm, folder)]
    assert list(rows) == [pages.TITLES[arm] for arm in arms]
    assert {pages.TITLES[arm] for arm in ("fixed 256", "survival", "DAEDAL", DEFAULT)} <= rows.keys()
    for arm in arms:
        cells = []
        for model in MODELS:
            fixed, answers = (kept.answers_of(model, recipe_of(name), folder=folder) for name in ("fixed 256", arm))
            cells.append(f"{seconds(answers):.3g} ({seconds(fixed) / seconds(answers):.1f}x)")
        passes, tokens = (ratio(all_models(arm, folder), all_models("fixed 256", folder), cost) for cost in COSTS)
        assert rows[pages.TITLES[arm]] == [*cells, f"{passes:.2f}", f"{tokens:.3f}"]


def test_a_table_of_seconds_leaves_out_arms_that_a_model_lacks(monkeypatch):
    def answers_of(model, recipe, folder):
        if (model, recipe) == (MODELS[1], recipe_of("DAEDAL")):
            return []
        answers = kept.answers_of(model, recipe, folder=folder)
        return answers[1:] if (model, recipe) == (MODELS[2], recipe_of("survival")) else answers  # not all prompts

    complete = {row[0] for row in rows_of(pages.speed(kept.GPU_SPEED))}
    monkeypatch.setattr(pages, "answers_of", answers_of)
    titles = {row[0] for row in rows_of(pages.speed(kept.GPU_SPEED))}
    assert complete - titles == {pages.TITLES["DAEDAL"], pages.TITLES["survival"]}


@pytest.mark.parametrize(("split", "table"), [("test", pages.lengths), (UNSEEN, pages.confirmed)])
def test_a_table_of_recipes_compares_each_model_with_the_fixed_canvas(split, table):
    rows = {row[0]: row[1:] for row in rows_of(table())}
    assert rows.keys() == {*(pages.LENGTHS if split == "test" else pages.CONFIRMED)}
    for at, model in enumerate(MODELS):
        fixed = kept.answers_of(model, recipe_of("fixed 256"), split)
        base, answers = on_shared_samples(fixed, kept.answers_of(model, recipe_of(DEFAULT), split))
        points = 100 * (fmean(answer.score for answer in answers) - fmean(answer.score for answer in base))
        p = paired_p([answer.correct for answer in base], [answer.correct for answer in answers])
        assert rows[DEFAULT][at] == f"{points:+.1f}, p {p:.1g}, {ratio(answers, base, 'tokens_computed'):.3f}"


def test_the_candidates_for_the_default_are_sorted_by_tokens():
    rows = rows_of(pages.chosen())
    assert {row[0] for row in rows} == {*GROUPS["choose"].arms}
    tokens = [float(row[3]) for row in rows]
    assert tokens == sorted(tokens)
    for arm, lowest, model, _, verdict in (row for row in rows if row[0] != "fixed 256"):
        points = {name: kept.compare_with_fixed(name, arm, "validation").points for name in MODELS}
        assert points[model] == min(points.values())
        assert lowest == f"{points[model]:+.1f}"
        allowed = "allowed" if points[model] >= 0 else "not allowed"
        assert verdict == ("**default**" if arm == DEFAULT else allowed)


def test_the_table_of_parts_takes_both_base_models_together():
    rows = {row[0]: row[1:] for row in rows_of(pages.parts())}
    assert rows.keys() == {*GROUPS["parts"].arms} - {*pages.OTHER_PARTS}
    base, answers = (
        [answer for model in BASE for answer in kept.answers_of(model, recipe_of(arm), folder=kept.PARTS)]
        for arm in ("fixed 256", "dual cache")
    )
    accuracy = [100 * fmean(answer.score for answer in arm) for arm in (base, answers)]
    p = paired_p([answer.correct for answer in base], [answer.correct for answer in answers])
    assert rows["dual cache"] == [
        f"{accuracy[1]:.1f}", f"{accuracy[1] - accuracy[0]:+.1f}, p {p:.1g}",
        f"{ratio(answers, base, 'forward_passes'):.2f}", f"{ratio(answers, base, 'tokens_computed'):.3f}",
        f"{seconds(answers) / seconds(base):.2f}",
    ]  # fmt: skip
    assert rows["fixed 256"][2:] == ["1.00", "1.000", "1.00"]
