"""Evaluation: records are complete, a killed run loses nothing, tables say what records say."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
import torch

import lastword
from lastword.engines.local import LocalEngine
from lastword.errors import EngineError, SandboxError, SettingError, TaskError
from lastword.evaluate import Journal
from lastword.evaluate.journal import read_records
from lastword.evaluate.records import RecordedCost
from lastword.evaluate.run import evaluate
from lastword.evaluate.tables import code_summary, paired_p, recipe_table, standard_error
from lastword.evaluate.tasks import Sample, embedded_tasks
from lastword.sandbox.runner import Limits, sandbox_info, sandbox_level
from tests.engines.replies import Spelling
from tests.evaluate.made import answer

RECIPE = lastword.Recipe(length=lastword.Fixed(8), unmask=lastword.MostConfident())
NOT_TIME = ("task", "index", "prompt", "text", "score", "horizon", "length", "finish", "cost", "recipe")


@pytest.fixture(scope="module")
def model():
    return lastword.load("tiny-llada-base", device="cpu")


def facts(records):
    """What a record says apart from when and beside whom it was made."""
    return sorted(repr([getattr(record, name) for name in NOT_TIME]) for record in records)


def test_a_record_says_everything_a_table_needs(model, tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    records = evaluate(model, "m", embedded_tasks(["algebra"]), RECIPE, journal, limit=2, max_batch_size=2)
    one = records[0]
    assert (one.model, one.recipe) == ("m", RECIPE)
    assert one.prompt == embedded_tasks(["algebra"])[0].samples()[one.index].digest
    assert one.cost.forward_passes == 8
    assert one.versions["lastword"] == lastword.__version__
    assert None not in (one.seconds, one.seconds_share, one.text, one.length, one.cost.attention_pairs)
    line = json.loads(journal.path.read_text().splitlines()[0])
    assert line["recipe"]["length"] == {"name": "fixed", "slots": 8}
    assert {"hardware", "dtype", "seconds", "expected_length", "finish", "score"} <= set(line)


def without_sandbox(monkeypatch):
    def failure(level):
        return "" if level.value == "none" else "missing"

    monkeypatch.setattr("lastword.sandbox.runner.level_failure", failure)


def test_a_record_says_how_code_was_kept_in(model, tmp_path, monkeypatch):
    tasks = embedded_tasks(["algebra", "write_function"])
    records = evaluate(model, "m", tasks, RECIPE, Journal(tmp_path / "a.jsonl"), limit=1)
    kept = {record.task: record.sandbox for record in records}
    assert kept["algebra"] is None
    assert kept["write_function"] == sandbox_info(plain=True)
    assert {"level", *asdict(Limits())} == set(kept["write_function"])
    without_sandbox(monkeypatch)
    monkeypatch.delenv("LASTWORD_UNSAFE_CODE", raising=False)
    records = evaluate(model, "m", tasks[1:], RECIPE, Journal(tmp_path / "b.jsonl"), limit=1)
    assert records[0].sandbox["level"] == "plain"


def test_an_answer_that_was_not_run_says_so(model, tmp_path, monkeypatch):
    """Without a sandbox, more than plain Python is no wrong answer: it is one that was not tried."""
    without_sandbox(monkeypatch)
    monkeypatch.delenv("LASTWORD_UNSAFE_CODE", raising=False)
    texts = iter(["import os", "return 1", "half a \ud800 character"])
    monkeypatch.setattr("lastword.evaluate.tasks.Sample.cut", lambda *_: next(texts))
    journal = Journal(tmp_path / "a.jsonl")
    tasks = embedded_tasks(["write_function"])
    records = evaluate(model, "m", tasks, RECIPE, journal, limit=3, max_batch_size=3)
    found = {record.text: (record.score, record.refused) for record in records}
    assert found == {
        "import os": (0.0, True), "return 1": (0.0, False), "half a ? character": (0.0, False),
    }  # fmt: skip
    said = code_summary(records)
    assert said.startswith("Code of 3 answers: sandbox plain;")
    assert "1 of them were not run" in said
    old = [answer(sandbox={"level": "namespaces", "walls": "landlock 7, seccomp"}), answer()]
    assert code_summary(old) == "Code of 1 answers: sandbox namespaces, with landlock 7, seccomp."
    assert code_summary([answer()]) == ""


def test_a_task_that_cannot_run_its_code_stops_before_the_first_answer(model, tmp_path, monkeypatch):
    class Code:
        name, group, version = "code", "code", "1"

        def samples(self, limit=None):
            return [Sample("code", 0, "Write a program.")]

        def score(self, samples, texts):
            raise AssertionError

        def conditions(self):
            return {"sandbox": {"level": sandbox_level().value}}

    monkeypatch.setattr("lastword.sandbox.runner.level_failure", lambda level: "missing")
    monkeypatch.setattr("lastword.engines.local.generate_ids", None)
    monkeypatch.delenv("LASTWORD_UNSAFE_CODE", raising=False)
    with pytest.raises(SandboxError, match="--unsafe-code"):
        evaluate(model, "m", [Code()], RECIPE, Journal(tmp_path / "a.jsonl"))


def test_batches_do_not_change_answers(model, tmp_path):
    runs = [
        evaluate(
            model, "m", embedded_tasks(["algebra"]), RECIPE, Journal(tmp_path / f"{rows}.jsonl"),
            limit=3, max_batch_size=rows,
        )
        for rows in (1, 3)
    ]  # fmt: skip
    assert facts(runs[0]) == facts(runs[1])


def test_what_is_recorded_is_not_asked_again(model, tmp_path, monkeypatch):
    journal = Journal(tmp_path / "a.jsonl")
    tasks = embedded_tasks(["algebra"])
    first = evaluate(model, "m", tasks, RECIPE, journal, limit=2, max_batch_size=2)
    monkeypatch.setattr("lastword.engines.local.generate_ids", None)
    assert evaluate(model, "m", tasks, RECIPE, journal, limit=2, max_batch_size=2) == first
    with pytest.raises(EngineError, match="NoneType"):  # another recipe, another model: those are asked
        evaluate(model, "other", tasks, RECIPE, journal, limit=2, max_batch_size=2)


class Watched(LocalEngine):
    """An engine that calls a function with the number of replies taken so far, before each further one."""

    def __init__(self, model, before):
        super().__init__(model)
        self.before = before

    def generate(self, requests, recipe, *, max_batch_size):
        for taken, replies in enumerate(super().generate(requests, recipe, max_batch_size=max_batch_size)):
            self.before(taken)
            yield replies


def lines_of(path):
    return path.read_bytes().splitlines() if path.exists() else []


def test_each_record_is_written_before_the_next_answer(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.evaluate.run.WRITE_SECONDS", 0.0)
    path, seen = tmp_path / "a.jsonl", []
    engine = Watched(toy, lambda taken: seen.append((taken, len(lines_of(path)))))
    counted = []
    evaluate(
        toy, "m", [Spelling(count=5)], RECIPE, Journal(path), max_batch_size=1, engine=engine,
        progress=lambda done, total: counted.append(done),
    )  # fmt: skip
    assert seen == [(taken, taken) for taken in range(5)]
    assert counted[:6] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SettingError], ids=lambda error: error.__name__)
@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_answers_finished_before_a_crash_are_recorded(toy, tmp_path, monkeypatch, error, pause):
    monkeypatch.setattr("lastword.evaluate.run.WRITE_SECONDS", pause)
    path, task = tmp_path / "a.jsonl", Spelling(count=5)

    def crash(taken):
        if taken == 3:
            raise error("crash")

    with pytest.raises(error, match="crash"):
        evaluate(toy, "m", [task], RECIPE, Journal(path), max_batch_size=1, engine=Watched(toy, crash))
    kept = lines_of(path)
    assert len(kept) == 3
    resumed = evaluate(toy, "m", [task], RECIPE, Journal(path))
    assert lines_of(path)[:3] == kept
    assert facts(resumed) == facts(evaluate(toy, "m", [task], RECIPE, Journal(tmp_path / "b.jsonl")))


def test_a_line_cut_in_the_middle_is_asked_again(model, tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    tasks = embedded_tasks(["algebra"])
    whole = evaluate(model, "m", tasks, RECIPE, journal, limit=3, max_batch_size=3)
    text = journal.path.read_text()
    journal.path.write_text(text[: text.rfind("{") + 40])
    again = evaluate(model, "m", tasks, RECIPE, Journal(journal.path), limit=3, max_batch_size=3)
    assert facts(again) == facts(whole)
    assert len(read_records(journal.path)) == 3


@pytest.mark.full  # tests/crash kills at more moments
def test_kill_nine_then_resume_is_the_unbroken_run(tmp_path):
    def command(out):
        options = "--tasks algebra --length fixed:256 --limit 8 --batch-size 1 --device cpu"
        return [sys.executable, "-m", "lastword", "eval", *options.split(), "--out", str(out)]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen(command(tmp_path / "a"), **quiet)
    path = tmp_path / "a" / "tiny-llada-base.test.jsonl"
    patience = time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") >= 2):
        assert killed.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < patience
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    recorded = path.read_text().count("\n")
    assert recorded < 8
    for out in ("a", "b"):
        done = subprocess.run(command(tmp_path / out), capture_output=True, text=True, check=True)
        assert "| tiny-llada-base | fixed, 256 slots | 8 |" in done.stdout
    broken, unbroken = (read_records(tmp_path / out) for out in ("a", "b"))
    assert len(broken) == 8
    assert facts(broken) == facts(unbroken)


def test_stop_strings_cut_before_the_first():
    sample = Sample("t", 0, "Q", stop=("\n\n", "Q:"))
    assert sample.cut("4\n\nQ: what") == "4"
    assert sample.cut("none of them") == "none of them"


@pytest.mark.parametrize("wrong", [{"max_batch_size": 0}, {"limit": 0}, {"limit": -1}])
def test_bad_settings_are_refused(model, tmp_path, wrong):
    with pytest.raises(SettingError, match=next(f"{k}={v}" for k, v in wrong.items())):
        evaluate(model, "m", embedded_tasks(["algebra"]), RECIPE, Journal(tmp_path / "a.jsonl"), **wrong)


def test_other_weights_under_the_same_name_are_asked_again(model, tmp_path):
    journal, tasks = Journal(tmp_path / "a.jsonl"), embedded_tasks(["algebra"])
    other = lastword.load("tiny-llada-base", device="cpu")
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    for one, count in ((model, 1), (other, 2), (model, 2)):
        assert len(evaluate(one, "m", tasks, RECIPE, journal, limit=1)) == 1
        assert len(read_records(journal.path)) == count
    evaluate(model, "m", tasks, RECIPE, journal, limit=1, seed=7)
    assert len(read_records(journal.path)) == 3


def test_a_file_where_a_folder_should_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is not a folder to write to"):
        Journal(tmp_path / "file" / "a.jsonl")


def test_unknown_tasks_and_broken_records_are_refused(tmp_path):
    with pytest.raises(TaskError, match="unknown embedded task 'gsm9k'; known: tiny, word_problems"):
        embedded_tasks(["gsm9k"])
    (tmp_path / "a.jsonl").write_text("not json\n")
    with pytest.raises(SettingError, match="cannot be read as records"):
        read_records(tmp_path)


def record(recipe, index, score, columns=10, **more):
    finish = "ended" if score else "truncated"
    cost = RecordedCost(2, columns, 0)
    return answer(recipe=recipe, index=index, score=score, cost=cost, finish=finish, **more)


def test_the_table_compares_with_the_first_recipe_on_common_samples():
    fixed, other = RECIPE, RECIPE.with_choices(length=lastword.Survival(16), block=4)
    records = [record(fixed, index, 1.0, columns=40) for index in range(10)]
    records += [record(other, index, float(index > 7)) for index in range(2, 10)]
    lines = recipe_table(records).markdown().splitlines()
    assert "| fixed, 8 slots | 10 | 8 | 1.000 ± 0.000 |  | 0.00 | 1.00 | 1.00 | 1.00 |" in lines[2]
    # Costs are also compared on the eight samples that both recipes answered.
    shown = "| survival:16, block 4 | 8 | 8 | 0.250 ± 0.164 | -0.750, p = 0.031 | 0.75 | 1.00 | 0.25 | 1.00 |"
    assert shown in lines[3]
    apart = recipe_table([records[0], records[-1]]).markdown().splitlines()
    assert "| no common samples |" in apart[3]


def test_seeds_of_one_recipe_have_separate_rows_and_copies_count_once():
    records = [record(RECIPE, index, 1.0) for index in range(4)]
    other = [record(RECIPE, index, 0.0, seed=1) for index in range(4)]
    lines = recipe_table([*records, *records, *other]).markdown().splitlines()[2:]
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| m (seed 0)", "fixed, 8 slots", "4"],
        ["| m (seed 1)", "fixed, 8 slots", "4"],
    ]


def test_a_recipe_is_labelled_by_what_is_not_plain():
    recipe = lastword.Recipe(length=lastword.Fixed(64), unmask=lastword.AboveThreshold(), cache=lastword.DualCache())
    assert recipe.label() == "fixed:64, threshold, dual"


def test_a_paired_test_of_equals_finds_nothing_and_of_a_clear_loss_finds_it():
    base = [True] * 40 + [False] * 10
    assert paired_p(base, base) == 1.0
    assert paired_p(base, [True] * 20 + [False] * 30) < 1e-4
    assert standard_error([1.0]) == 0.0
    assert standard_error([1.0, 0.0, 1.0, 0.0]) == pytest.approx(0.288675)
