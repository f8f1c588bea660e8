"""Prompts in several files, folders, patterns and compressed files are answered like those of one file."""

import gzip
import json

import pytest

from lastword.batch import Batch
from lastword.errors import PromptError, SettingError
from tests.batch.batches import EchoEngine, read_lines, run, write_lines

LINES = [{"prompt": "a" * n, "id": n} for n in range(1, 10)]


@pytest.fixture
def shards(tmp_path):
    """A folder with the lines in three files, of which one is compressed and one is in a folder."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    write_lines(folder / "a.jsonl", *LINES[:4])
    content = b"".join(json.dumps(line).encode() + b"\n" for line in LINES[4:6])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(content))
    write_lines(folder / "more" / "c.ndjson", *LINES[6:])
    write_lines(folder / "notes.txt", b"not a prompt")
    return folder


def given(kind, folder):
    files = [folder / "a.jsonl", folder / "b.jsonl.gz", folder / "more" / "c.ndjson"]
    return {
        "files": files,
        "folder": folder,
        "pattern": str(folder / "**" / "*son*"),
        "mixed": [files[0], folder / "b*", files[2]],
    }[kind]


@pytest.mark.parametrize("kind", ["files", "folder", "pattern", "mixed"])
def test_several_files_are_answered_like_one(toy, tmp_path, shards, kind):
    whole = write_lines(tmp_path / "p.jsonl", *LINES)
    run(EchoEngine(toy), whole, tmp_path / "whole.jsonl")
    summary = run(EchoEngine(toy), given(kind, shards), tmp_path / "a.jsonl")
    assert summary.answered == 9
    expected, lines = read_lines(tmp_path / "whole.jsonl"), read_lines(tmp_path / "a.jsonl")
    assert [line | {"run": ""} for line in lines] == [line | {"run": ""} for line in expected]
    engine = EchoEngine(toy)
    assert run(engine, given(kind, shards), tmp_path / "a.jsonl").before == 9
    assert not engine.num_requests


def test_a_folder_of_tables(toy, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    (tmp_path / "data").mkdir()
    for name, rows in (("1", LINES[:5]), ("2", LINES[5:])):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data" / f"{name}.parquet")
    run(EchoEngine(toy), tmp_path / "data", tmp_path / "a.jsonl")
    assert [line["text"] for line in read_lines(tmp_path / "a.jsonl")] == [str(n) for n in range(1, 10)]


def test_an_invalid_line_names_its_file(toy, tmp_path):
    first, second = (write_lines(tmp_path / name, LINES[0], b"{") for name in ("a.jsonl", "b.jsonl"))
    run(EchoEngine(toy), [first, second], tmp_path / "out.jsonl")
    assert f"line 2 of {second}: it is not JSON" in read_lines(tmp_path / "out.jsonl")[3]["failed"]


def test_another_file_is_another_run(toy, tmp_path, shards):
    run(EchoEngine(toy), shards, tmp_path / "a.jsonl")
    write_lines(shards / "d.jsonl", LINES[0])
    with pytest.raises(SettingError, match="another set of prompts"):
        run(EchoEngine(toy), shards, tmp_path / "a.jsonl")


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b'{"prompt": "a"}\n' * 99)[:-12]])
def test_a_damaged_file_is_rejected(tmp_path, content):
    (tmp_path / "p.jsonl.gz").write_bytes(content)
    with pytest.raises(PromptError, match=r"cannot be read|has no prompts"):
        Batch(tmp_path / "p.jsonl.gz", tmp_path / "a.jsonl", name="m")


@pytest.mark.parametrize("name", ["none*.jsonl", "data/*.txt", "empty"])
def test_a_pattern_or_folder_without_prompts_is_rejected(tmp_path, shards, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PromptError, match=r"has no \.jsonl or \.parquet files|ends in \.txt"):
        Batch(tmp_path / name, tmp_path / "a.jsonl", name="m")


@pytest.mark.parametrize("name", ["data", "data/*.jsonl", "data/[a-c]*.jsonl", "*/*.jsonl", "**/*.jsonl"])
@pytest.mark.parametrize("out", ["answers.jsonl", "answers.parquet"])  # answers.parquet.jsonl is the journal
def test_answers_among_the_prompts_are_rejected(tmp_path, shards, name, out):
    with pytest.raises(SettingError, match="would be one of the files of prompts"):
        Batch(tmp_path / name, shards / out, name="m")


@pytest.mark.parametrize(
    ("name", "out"), [("data/*.jsonl", "data/new/a.jsonl"), ("data/[!n]*.jsonl", "data/new.jsonl")]
)
def test_a_pattern_that_does_not_match_the_answers_is_accepted(tmp_path, shards, name, out):
    assert Batch(tmp_path / name, tmp_path / out, name="m").count
