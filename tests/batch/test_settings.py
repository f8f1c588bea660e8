"""The settings of a run, and those of a line, which replace them."""

import pytest

import lastword
from lastword import Fixed, Recipe, Sampling, Survival
from lastword.batch import Batch
from lastword.errors import SettingError, WrongTypeError
from lastword.models.toy import Toy
from tests.batch.batches import EchoEngine, answer, run, write_lines

FILTERED = Recipe(length=Fixed(9), sampling=Sampling(temperature=2.0, top_k=5))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 3},
        {"seed": 7},
        {"length": "fixed:7"},
        {"recipe": "paper", "length": "survival:16"},
        {"temperature": 3.0},
        {"temperature": 0},  # which also removes the filter of the recipe
        {"temperature": 3.0, "top_k": 2},
        {"top_p": 0.5},
        {"stop": "h"},
        {"stop": ["zz", "gh"]},
    ],
    ids=str,
)
def test_a_line_with_settings_is_answered_like_generate_with_them(toy, tmp_path, settings):
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, {"prompt": "abc", **settings})
    plain, found = answer(toy, source, tmp_path / "a.jsonl", recipe=FILTERED)[0]
    expected = lastword.generate(toy, "abc", **{"recipe": FILTERED, "seed": 1, **settings})
    assert (found["text"], found["tokens"], found["horizon"], found["finish"]) == (
        expected.text, len(expected.tokens), expected.horizon, expected.finish.name.lower(),
    )  # fmt: skip
    assert found["seed"] == settings.get("seed", 1)
    assert plain["text"] == lastword.generate(toy, "abc", recipe=FILTERED).text


def test_max_tokens_of_a_line_is_max_new_tokens(toy, tmp_path):
    lines = [{"prompt": "abc", name: 3} for name in ("max_tokens", "max_new_tokens")]
    lines.append({"prompt": "abc", "max_tokens": 3, "max_new_tokens": 3})
    found, _ = answer(toy, write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl")
    assert [line["text"] for line in found] == ["def"] * 3


def test_settings_of_the_run_hold_for_lines_without_their_own(toy, tmp_path):
    source = write_lines(
        tmp_path / "p.jsonl",
        {"prompt": "abc"},
        {"prompt": "abc", "max_new_tokens": 4, "stop": "z"},
        {"prompt": "abc", "max_new_tokens": 9, "stop": []},
    )
    found, _ = answer(toy, source, tmp_path / "a.jsonl", max_new_tokens=3, stop=["f"])
    assert [line["text"] for line in found] == ["de", "defg", "defgh"]
    assert [line["finish"] for line in found] == ["stopped", "truncated", "truncated"]


def test_a_stopped_answer_names_its_stop_string_and_needs_fewer_passes(toy, tmp_path):
    recipe = Recipe(length=Fixed(20), block=1)
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, {"prompt": "abc", "stop": ["zz", "fg"]})
    whole, stopped = answer(toy, source, tmp_path / "a.jsonl", recipe=recipe)[0]
    assert (whole["finish"], whole["stop_reason"], whole["forward_passes"]) == ("truncated", None, 20)
    assert (stopped["text"], stopped["tokens"]) == ("de", 2)
    assert (stopped["finish"], stopped["stop_reason"], stopped["forward_passes"]) == ("stopped", "fg", 4)


def test_a_stop_string_of_a_model_without_tokenizer_fails_the_line(tmp_path):
    class Bare(Toy):
        tokenizer = None

    source = write_lines(tmp_path / "p.jsonl", {"tokens": [1, 2]}, {"tokens": [1, 2], "stop": "x"})
    found, _ = answer(Bare(), source, tmp_path / "a.jsonl")
    assert found[0]["failed"] is None
    assert "needs a model with a tokenizer" in found[1]["failed"]


def test_a_recipe_of_a_line_that_the_model_cannot_run_fails_the_line(toy, tmp_path):
    recipe = {"length": "fixed:5", "cache": "dual"}
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, {"prompt": "abc", "recipe": recipe})
    found, summary = answer(toy, source, tmp_path / "a.jsonl")
    assert (summary.answered, summary.failed) == (1, 1)
    assert "NoCache" in found[1]["failed"]


def test_lines_with_other_recipes_are_answered_in_one_run(toy, tmp_path):
    lines = [{"prompt": "abc", "length": f"fixed:{slots}"} for slots in (3, 8, 5, 8)]
    found, _ = answer(
        toy, write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl", recipe=Recipe(length=Survival(16))
    )
    assert [line["horizon"] for line in found] == [3, 8, 5, 8]


def test_a_table_may_have_columns_of_settings(toy, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    rows = [
        {"prompt": "abc", "max_new_tokens": 2, "stop": None, "temperature": None},
        {"prompt": "abc", "max_new_tokens": None, "stop": ["f"], "temperature": 0.0},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    found, _ = answer(toy, tmp_path / "p.parquet", tmp_path / "a.jsonl")
    assert [line["text"] for line in found] == ["de", "de"]
    assert [line["finish"] for line in found] == ["truncated", "stopped"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_new_tokens": 0}, SettingError),
        ({"max_new_tokens": 2.5}, WrongTypeError),
        ({"stop": "text"}, WrongTypeError),
        ({"stop": [3]}, WrongTypeError),
        ({"stop": [""]}, SettingError),
        ({"chat": "yes"}, SettingError),
        ({"chat": 1}, WrongTypeError),
        ({"max_batch_size": 0}, SettingError),
    ],
    ids=str,
)
def test_a_setting_of_the_run_that_cannot_be_is_refused_by_name(tmp_path, settings, error):
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"})
    with pytest.raises(error, match=rf"batch\({next(iter(settings))}="):
        Batch(source, tmp_path / "a.jsonl", name="m", **settings)


def test_the_file_of_the_run_names_optional_settings_only_if_they_are_set(toy, tmp_path):
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"})
    run(EchoEngine(toy), source, tmp_path / "a.jsonl")
    run(EchoEngine(toy), source, tmp_path / "b.jsonl", max_new_tokens=3, stop=["x"])
    plain, changed = ((tmp_path / f"{name}.jsonl.run.json").read_text() for name in "ab")
    assert "max_new_tokens" not in plain
    assert "stop" not in plain.replace("stop-at-end", "")
    assert '"max_new_tokens": 3' in changed
