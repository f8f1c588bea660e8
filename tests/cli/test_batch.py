"""Tests of the command `lastword batch`."""

import json
import signal
import subprocess
import sys

import pytest

from lastword.cli.errors import ALL_FAILED, SOME_FAILED, TERMINATED, TerminatedError
from lastword.cli.options import EngineOptions
from lastword.engines.local import LocalEngine
from tests.batch.batches import read_lines, write_lines
from tests.batch.test_resume import HOLD

TOY = ("-m", "toy", "--length", "fixed:5")


@pytest.fixture
def batch(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, b"oops", {"prompt": "xyz", "max_tokens": 2})
    return lambda *words: command("batch", *words)


def test_a_file_is_answered_and_the_last_line_names_the_answers_file(batch, tmp_path):
    code, out, err = batch("p.jsonl", "--out", "new/a.jsonl", *TOY)
    assert (code, err) == (SOME_FAILED, "")
    assert out.startswith("2 answered, 1 failed; 7 tokens in ")
    assert out.endswith("tokens/s; answers in new/a.jsonl\n")
    answers = read_lines(tmp_path / "new" / "a.jsonl")
    assert [line["text"] for line in answers] == ["defgh", None, answers[2]["text"]]
    code, out, _ = batch("p.jsonl", "--out", "new/a.jsonl", *TOY)
    assert code == SOME_FAILED
    assert out == "2 answered, 1 failed (3 by an earlier run); answers in new/a.jsonl\n"
    code, _, err = batch("p.jsonl", "--out", "new/a.jsonl", *TOY, "--seed", "4")
    assert code == 1
    assert "another seed (0 then, 4 now)" in err


def test_options_are_used_and_saved(batch, tmp_path):
    words = ("--temperature", "2.0", "--top-k", "5", "--seed", "9", "--limit", "1", "--batch-size", "3")
    assert batch("p.jsonl", "--out", "a.jsonl", *TOY, *words, "--as-they-come")[0] == 0
    run = json.loads((tmp_path / "a.jsonl.run.json").read_text())
    assert (run["model"], run["seed"]) == ("toy", 9)
    assert run["recipe"]["sampling"]["temperature"] == 2.0
    assert run["recipe"]["sampling"]["top_k"] == 5
    assert run["recipe"]["length"] == {"name": "fixed", "slots": 5}
    assert [line["seed"] for line in read_lines(tmp_path / "a.jsonl")] == [9]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("notes.jsonl", "--out", "a.jsonl"), 1, '; give an object per line, such as {"prompt": '),
        (("none.jsonl", "--out", "a.jsonl"), 1, "(No such file or directory); give a .jsonl"),
        (("notes.jsonl", "--out", "a.txt"), 1, "end it in .jsonl"),
        (("notes.jsonl", "--out", "a.jsonl", "--batch-size", "0"), 1, "--batch-size 0 was given; give a whole number"),
        (("notes.jsonl", "--out", "a.jsonl", "--limit", "0"), 1, "--limit 0 was given; give a whole number from 1"),
        (("notes.jsonl", "--out", "a.jsonl", "--recipe", "fastest"), 1, "no recipe called"),
        (("notes.jsonl",), 2, "Missing option"),
        (("p.jsonl", "--out", "a.jsonl", "-m", "./no/such/folder"), 1, "no/such/folder"),
    ],
)
def test_invalid_options_are_rejected_before_any_work(batch, tmp_path, monkeypatch, words, code, reason):
    write_lines(tmp_path / "notes.jsonl", b"my notes")
    if "-m" not in words:
        monkeypatch.setattr(EngineOptions, "open", None)
    exit_code, _, err = batch(*words)
    assert exit_code == code
    assert reason in " ".join(err.split())
    assert code == 2 or len(err.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"notes.jsonl", "p.jsonl"}


def test_an_interrupted_run_closes_the_engine_and_says_how_to_resume(batch, monkeypatch, toy):
    closed = []

    class Broken(LocalEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            raise KeyboardInterrupt

        def close(self):
            closed.append(True)

    monkeypatch.setattr(EngineOptions, "open", lambda options, source, threads: Broken(toy))
    code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    assert code == 130
    assert err.startswith("lastword: interrupted; ")
    assert "repeat the command to resume" in err
    assert closed == [True]


def test_the_exit_code_tells_whether_prompts_failed(batch, tmp_path):
    for prompts, code in ((["abc"], 0), (["abc", "A?"], SOME_FAILED), (["A?", "B?"], ALL_FAILED)):
        write_lines(tmp_path / "q.jsonl", *[{"prompt": prompt} for prompt in prompts])
        assert batch("q.jsonl", "--out", f"{len(prompts)}{code}.jsonl", *TOY)[0] == code


def test_a_second_writer_is_refused_before_the_model_is_loaded(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(EngineOptions, "open", None)
    other = subprocess.Popen([sys.executable, "-c", HOLD, "a.jsonl"], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    finally:
        other.kill()
        other.wait()
    assert code == 1
    assert f"is being written by process {other.pid}" in err


def test_sigterm_has_the_effect_of_ctrl_c(batch, monkeypatch, toy):
    class Waiting(LocalEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(EngineOptions, "open", lambda options, source, threads: Waiting(toy))
    before = signal.getsignal(signal.SIGTERM)
    try:
        code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == TERMINATED == 128 + signal.SIGTERM
    assert err == "lastword: terminated; finished answers are saved: repeat the command to resume\n"
    assert issubclass(TerminatedError, KeyboardInterrupt)


def test_progress_and_failures_are_shown_on_a_terminal(batch, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", True)
    code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    assert code == SOME_FAILED
    assert "3/3 prompts" in err
    assert "1 failed" in err
