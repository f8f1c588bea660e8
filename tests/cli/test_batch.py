"""`lastword batch` as a user calls it."""

import io
import json
import sys

import pytest

from lastword.batch.progress import BatchProgress
from lastword.cli import main
from lastword.cli.batch import batch as command  # the function; the module has its name
from tests.batch.batches import read_lines, write_lines

cli = sys.modules["lastword.cli.batch"]
TOY = ("-m", "toy", "--length", "fixed:5")


@pytest.fixture
def batch(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lastword", "batch", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def prompts(tmp_path):
    return write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, b"oops", {"prompt": "xyz", "max_tokens": 2})


def test_a_file_is_answered_and_the_last_line_says_what_was_written(batch, prompts, tmp_path):
    code, out, err = batch("p.jsonl", "--out", "new/a.jsonl", *TOY)
    assert (code, err) == (0, "")
    assert out.startswith("2 answered, 1 failed; 7 tokens in ")
    assert out.endswith("tokens/s; wrote new/a.jsonl\n")
    found = read_lines(tmp_path / "new" / "a.jsonl")
    assert [line["text"] for line in found] == ["defgh", None, found[2]["text"]]
    code, out, _ = batch("p.jsonl", "--out", "new/a.jsonl", *TOY)
    assert code == 0
    assert out.startswith("2 answered, 1 failed, 3 of them before; 0 tokens")
    code, _, err = batch("p.jsonl", "--out", "new/a.jsonl", *TOY, "--seed", "4")
    assert code == 1
    assert "another seed (0 then, 4 now)" in err


def test_options_reach_the_run(batch, prompts, tmp_path):
    words = ("--temperature", "2.0", "--top-k", "5", "--seed", "9", "--limit", "1", "--rows", "3")
    assert batch("p.jsonl", "--out", "a.jsonl", *TOY, *words, "--as-they-come")[0] == 0
    said = json.loads((tmp_path / "a.jsonl.run.json").read_text())
    assert (said["model"], said["seed"]) == ("toy", 9)
    assert said["recipe"]["sampling"]["temperature"] == 2.0
    assert said["recipe"]["sampling"]["top_k"] == 5
    assert said["recipe"]["length"] == {"name": "fixed", "slots": 5}
    assert [line["seed"] for line in read_lines(tmp_path / "a.jsonl")] == [9]


def test_nothing_is_loaded_for_a_file_that_is_none(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "open_engine", None)
    write_lines(tmp_path / "notes.jsonl", b"my notes")
    cases = {
        ("notes.jsonl", "--out", "a.jsonl"): '; give it such as {"prompt": ',
        (
            "none.jsonl",
            "--out",
            "a.jsonl",
        ): "(No such file or directory); give a .jsonl, .parquet or text file",
        ("notes.jsonl", "--out", "a.txt"): "end it in .jsonl",
        (
            "notes.jsonl",
            "--out",
            "a.jsonl",
            "--rows",
            "0",
        ): "rows must be a whole number, 1 or more",
        (
            "notes.jsonl",
            "--out",
            "a.jsonl",
            "--limit",
            "0",
        ): "limit must be a whole number, 1 or more",
        ("notes.jsonl", "--out", "a.jsonl", "--recipe", "fastest"): "no recipe called",
        ("notes.jsonl", "--out", "a.jsonl", "--name", ""): "--name was given empty",
    }
    for words, reason in cases.items():
        code, _, err = batch(*words)
        assert code == 1
        assert reason in err
        assert len(err.splitlines()) == 1
    assert batch("notes.jsonl")[0] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"notes.jsonl"}


def test_a_model_that_is_not_there_is_told_and_nothing_is_written(batch, prompts, tmp_path):
    code, _, err = batch("p.jsonl", "--out", "a.jsonl", "-m", "./no/such/folder")
    assert code == 1
    assert "no/such/folder" in err
    assert not (tmp_path / "a.jsonl").exists()


def test_the_engine_is_closed_whatever_happens(batch, prompts, monkeypatch, toy):
    from lastword.engines.local import LocalEngine

    closed = []

    class Broken(LocalEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            raise KeyboardInterrupt

        def close(self):
            closed.append(True)

    monkeypatch.setattr(cli, "open_engine", lambda options, source: Broken(toy))
    code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    assert code == 130
    assert err.startswith("lastword: interrupted; ")
    assert "give the same command again" in err
    assert closed == [True]


def test_failures_are_shown_beside_what_is_left():
    from lastword.cli.console import Showing

    shown = Showing("prompts", now=lambda: 0.0)
    cli.show_progress(shown, BatchProgress(3, 10, 0, 1.0, 59.0))
    assert str(shown) == "3 of 10 prompts, 0 s; about 59 s left"
    cli.show_progress(shown, BatchProgress(5, 10, 1, 1.0, None))
    assert str(shown).endswith("; 1 failed, about 0 s left")  # of a clock that stands still


def test_on_a_terminal_a_bar_is_drawn(batch, prompts, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", True)
    code, _, err = batch("p.jsonl", "--out", "a.jsonl", *TOY)
    assert code == 0
    assert "3/3" in err
    assert "1 failed, about 0 s left" in " ".join(err.split())


def test_the_command_is_the_one_of_the_table():
    from lastword.cli import COMMANDS

    assert COMMANDS["batch"] is command
