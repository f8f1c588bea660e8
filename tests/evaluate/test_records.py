"""What is no record is refused with its file, line and field, and never with a traceback."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import SettingError
from lastword.evaluate.journal import Journal, read_records
from lastword.evaluate.records import Answer, from_line, identity, make_record, to_line
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import ANSWERED, ASKED, answer, drift

DEEP = json.loads("[" * 150 + "]" * 150)


def line(**fields):
    return json.dumps(json.loads(to_line(answer(text="4"))) | fields)


def test_a_record_comes_back_from_its_line():
    for record in (answer(text="four", prompt="abc", sandbox={"level": "plain"}), drift()):
        assert from_line(to_line(record)) == record


def test_records_of_one_recipe_share_its_value():
    first, second = (from_line(line(index=index)) for index in (0, 1))
    assert first.recipe is second.recipe
    assert first.recipe == Recipe(length=Fixed(8))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cost": {}}, "cost.forward_passes"),
        ({"cost": {"forward_passes": -1, "tokens_computed": 2}}, "cost.forward_passes"),
        ({"cost": {"forward_passes": 1, "tokens_computed": 10**30}}, "cost.tokens_computed"),
        ({"recipe": None}, "recipe"),
        ({"recipe": "fixed"}, "recipe"),
        ({"recipe": {"length": {"name": "fixed", "slots": "many"}}}, "recipe"),
        ({"recipe": {"length": {"name": "fixed", "slots": DEEP}}}, "recipe"),
        ({"recipe": {"lenght": "fixed"}}, "recipe"),
        ({"rows": 0}, "rows"),
        ({"rows": True}, "rows"),
        ({"score": 5}, "score"),
        ({"score": float("nan")}, "score"),
        ({"seconds": float("inf")}, "seconds"),
        ({"seconds_share": "1.0"}, "seconds_share"),
        ({"seconds_share": -1.0}, "seconds_share"),
        ({"batch_seconds": "1.0"}, "batch_seconds"),
        ({"horizon": -5}, "horizon"),
        ({"index": 1.5}, "index"),
        ({"finish": "tired"}, "finish"),
        ({"model": "m" * 2000}, "model"),
        ({"mood": "good"}, "mood"),
        ({"kind": "guess"}, "a line"),
        ({"text": json.loads("[" * 190 + "]" * 190)}, "text"),
    ],
)
def test_a_bad_field_is_refused_by_name(tmp_path, fields, field):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{line()}\n{line(**fields)}\n")
    with pytest.raises(SettingError, match=rf"bad\.jsonl cannot be read.*line 2, {field}: "):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "text", ["[1]", "{", "null", "not json", "[" * 100_000, '{"a":' * 100_000, line()[:-20], "\x00\xff"]
)
def test_a_line_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "bad.jsonl").write_text(text + "\n")
    with pytest.raises(SettingError, match=r"bad\.jsonl cannot be read as records \(line 1, "):
        read_records(tmp_path)


@pytest.mark.parametrize("missing", sorted({*ASKED, *ANSWERED} - {"length", "seconds_share"}))
def test_a_field_that_is_missing_is_named(missing):
    given = {name: value for name, value in json.loads(line()).items() if name != missing}
    with pytest.raises(ValueError, match=f"{missing}: Field required"):
        from_line(json.dumps(given))


@pytest.mark.parametrize("expected", [{}, {"2": 5.0}, {"0": -1.0}, {"0": float("nan")}, {"0": 5.0, "two": 6.0}, None])
def test_drift_is_read_from_the_first_step_on(expected):
    given = json.loads(to_line(drift())) | {"expected": expected}
    with pytest.raises(ValueError, match="expected"):
        from_line(json.dumps(given))


def test_fields_that_make_no_record_are_refused_before_they_are_written():
    with pytest.raises(SettingError, match="score: Input should be less than or equal to 1"):
        make_record(ASKED | ANSWERED | {"score": 1.5})


def test_another_question_has_another_identity():
    first = answer(prompt="a")
    others = {
        "model": "n", "weights": "v", "recipe": Recipe(length=Fixed(9)), "seed": 1, "task": "u",
        "task_version": "2", "split": "validation", "index": 1, "prompt": "b", "layout": "chat",
    }  # fmt: skip
    assert len({identity(replace(first, **{k: v})) for k, v in others.items()}) == len(others)
    assert identity(replace(first, score=0.0, hardware="other")) == identity(first)


def test_the_command_says_which_line_is_wrong(tmp_path):
    Journal(tmp_path / "a.jsonl").append([answer()])
    (tmp_path / "b.jsonl").write_text(line(rows=0) + "\n")
    done = CliRunner().invoke(app, ["tables", "--records", str(tmp_path)])
    assert done.exit_code == 1
    assert "line 1, rows: " in done.output.replace("\n", " ")


def test_a_frozen_record_says_what_it_cost_with_its_probe():
    record = answer()
    assert (record.forward_passes, record.tokens_computed, record.correct) == (2, 20, True)
    assert isinstance(record, Answer)


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"seconds_share": 0.5}, 0.5),
        ({"seconds_share": 0.0}, 0.0),
        ({"seconds_share": None}, None),
        ({"seconds_share": None, "batch_seconds": 6.0, "rows": 4}, 1.5),  # a record from before 0.2
        ({"seconds_share": None, "batch_seconds": None, "rows": 4}, None),
    ],
)
def test_the_share_of_the_time_of_an_old_record_is_that_of_its_batch(fields, share):
    assert answer(**fields).share_of_time == share
    assert from_line(to_line(answer(**fields))).share_of_time == share
