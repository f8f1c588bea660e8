"""The expected length of later steps is that of the same decoding, and costs only those steps."""

import json

import pytest
from typer.testing import CliRunner

import lastword
from lastword.cli import app, main
from lastword.decoding.loop import decode
from lastword.errors import SettingError, TaskError
from lastword.evaluate import Journal, drift
from lastword.evaluate.journal import read_records
from lastword.evaluate.tasks import embedded_tasks
from lastword.models.toy import Toy
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.engines.test_room import YesTask


@pytest.fixture(scope="module")
def model():
    return lastword.load("tiny-llada-base", device="cpu")


def test_it_reads_what_decoding_says_at_each_step(model, tmp_path):
    tasks = embedded_tasks(["algebra"])
    found = drift(
        model, "m", tasks, Journal(tmp_path / "d.jsonl"), length=Survival(24), steps=(1, 3), limit=2,
        max_batch_size=2,
    )  # fmt: skip
    prompts = [model.tokenizer.encode(s.prompt) for s in tasks[0].samples(2)]
    steps = list(decode(model, prompts, Recipe.named("fixed").with_choices(length=Fixed(24))))
    for index in (0, 1, 3):
        means = Survival(24).interpret(steps[index].prediction).mean.tolist()
        got = [record.expected[str(index)] for record in found]
        assert got == pytest.approx(means, abs=0.01)
    assert all(list(record.expected) == ["0", "1", "3"] for record in found)


def test_a_second_call_asks_nothing_again(model, tmp_path, monkeypatch):
    given = {"length": Survival(16), "steps": (1,), "limit": 1}
    journal = Journal(tmp_path / "d.jsonl")
    once = drift(model, "m", embedded_tasks(["algebra"]), journal, **given)
    monkeypatch.setattr("lastword.evaluate.length_drift.decode", lambda *_: pytest.fail("asked again"))
    assert drift(model, "m", embedded_tasks(["algebra"]), journal, **given) == once
    assert len(journal.path.read_text().splitlines()) == 1
    assert json.loads(journal.path.read_text())["kind"] == "drift"


def test_a_step_that_was_not_read_is_measured_and_none_is_lost(model, tmp_path):
    journal, tasks = Journal(tmp_path / "d.jsonl"), embedded_tasks(["algebra"])
    given = {"length": Survival(16), "max_batch_size": 2}
    drift(model, "m", tasks, journal, steps=(1, 3), limit=2, **given)
    (found,) = drift(model, "m", tasks, journal, steps=(2, 5), limit=1, **given)
    assert list(found.expected) == ["0", "1", "2", "3", "5"]
    both = read_records(journal.path)  # the later record replaces the earlier
    assert sorted(len(record.expected) for record in both) == [3, 5]
    assert {record.index for record in both} == {0, 1}
    lines = journal.path.read_text().count("\n")
    assert drift(model, "m", tasks, journal, steps=(1, 5), limit=1, **given) == [found]
    assert journal.path.read_text().count("\n") == lines


def test_prompts_without_room_for_the_canvas_are_left_out(tmp_path, caplog):
    task = YesTask(30, 84, 85, 200)
    model = Toy()
    model.max_seq_len = 100

    def measure(slots):
        journal = Journal(tmp_path / f"{slots}.jsonl")
        return drift(model, "m", [task], journal, length=Survival(slots), steps=(2,))

    assert [record.index for record in measure(16)] == [0, 1]
    assert "2 of 4 prompts leave no room for 16 slots" in caplog.text
    with pytest.raises(SettingError, match=r"none of 4 prompts leaves room for 80 .* length of 100.*70"):
        measure(80)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"steps": ()}, "no steps"),
        ({"steps": (0,)}, "steps=0"),
        ({"steps": (-1,)}, "steps=-1"),
        ({"steps": (2, 16)}, "step 16, and a canvas of 16 slots"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"limit": 0}, "limit=0"),
        ({"limit": -1}, "limit=-1"),
    ],
)
def test_bad_settings_are_refused(model, tmp_path, wrong, why):
    given = {"limit": 1, "length": Survival(16), "steps": (1,)} | wrong
    with pytest.raises(SettingError, match=why):
        drift(model, "m", embedded_tasks(["algebra"]), Journal(tmp_path / "d.jsonl"), **given)


def test_the_command_rejects_a_canvas_without_slots(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lastword", "drift", "--slots", "0", "--device", "cpu"])
    with pytest.raises(SystemExit) as exit_error:
        main()
    assert exit_error.value.code == 1
    assert "--slots 0 was given; give a whole number from 1 to 1048576" in capsys.readouterr().err


def test_the_command_refuses_an_unknown_task_before_a_model_is_loaded(monkeypatch):
    def refuse(names, include_path):
        raise TaskError(f"there is no task {names[0]!r}")

    monkeypatch.setattr("lastword.evaluate.presets.task_manager", refuse)
    monkeypatch.setattr("lastword.load", lambda *_, **__: pytest.fail("loaded"))
    done = CliRunner().invoke(app, ["drift", "--tasks", "gsm9k"])
    assert (done.exit_code, "there is no task 'gsm9k'" in done.output) == (1, True)
