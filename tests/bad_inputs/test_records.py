"""Journals, Parquet files and folders that are wrong: each is refused by name and left as it is."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from benchmarks.paper.figures import save_figures
from benchmarks.paper.tables import paper_tables
from lastword.cli import app
from lastword.errors import LastwordError, SettingError
from lastword.evaluate import Journal
from lastword.evaluate.journal import read_records
from lastword.evaluate.parquet import to_columns, to_row, write_parquet
from lastword.evaluate.records import to_line
from lastword.evaluate.tables import tables
from tests.evaluate.made import answer, drift

ARM = [answer(index=index) for index in range(5)]
DRIFT = [drift(index=index) for index in range(5)]
GOOD = to_line(answer(text="4")) + b"\n"


def line(*missing: str, **fields: object) -> bytes:
    """A journal of two lines: a good one, and one with other fields."""
    given = json.loads(to_line(answer(text="4"))) | fields
    return GOOD + json.dumps({n: v for n, v in given.items() if n not in missing}).encode() + b"\n"


def drifted(**fields: object) -> bytes:
    return GOOD + json.dumps(json.loads(to_line(drift())) | fields).encode() + b"\n"


def parquet(*missing: str, records: list = ARM, **columns: list) -> bytes:
    """A Parquet file with other columns."""
    found = to_columns([to_row(record) for record in records]) | columns
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({k: v for k, v in found.items() if k not in missing}), sink)
    return sink.getvalue().to_pybytes()


WHOLE = parquet()
HUGE = 10**400


class Row(NamedTuple):
    """A file of a folder that is read, what is refused, and a phrase of the message."""

    name: str
    content: bytes
    phrase: str
    file: str = "a.jsonl"


LINES = [
    Row("a negative index", line(index=-1), "line 2, index: Input should be greater"),
    Row("an index beyond counting", line(index=10**16), "line 2, index: Input should be less"),
    Row("an index of 400 digits", line(index=HUGE), "line 2, index: "),
    Row("a true index", line(index=True), "line 2, index: Input should be a valid integer"),
    Row("an index in words", line(index="one"), "line 2, index: Input should be a valid integer"),
    Row("no rows", line(rows=0), "line 2, rows: Input should be greater"),
    Row("a million and one rows", line(rows=10**6 + 1), "line 2, rows: Input should be less"),
    Row("a score of five", line(score=5), "line 2, score: Input should be less"),
    Row("a score below zero", line(score=-0.1), "line 2, score: Input should be greater"),
    Row("a score that is none", line(score=float("nan")), "line 2, score: "),
    Row("a score in quotes", line(score="1"), "line 2, score: Input should be a valid number"),
    Row("a horizon below zero", line(horizon=-5), "line 2, horizon: Input should be greater"),
    Row("a horizon no model has", line(horizon=2**21), "line 2, horizon: Input should be less"),
    Row("a length below zero", line(length=-1), "line 2, length: Input should be greater"),
    Row("no recipe", line(recipe=None), "line 2, recipe: "),
    Row("a recipe in words", line(recipe="fixed:8"), "line 2, recipe: "),
    Row("an empty part", line(recipe={"length": {}}), "line 2, recipe: "),
    Row("a canvas of NaN", line(recipe={"length": {"name": "fixed", "slots": float("nan")}}), "line 2, "),
    Row("a canvas of 400 digits", line(recipe={"length": {"name": "fixed", "slots": HUGE}}), "line 2, "),
    Row("no cost", line(cost={}), "line 2, cost.forward_passes: Field required"),
    Row("a cost that is a list", line(cost=[1, 2]), "line 2, cost: "),
    Row("a cost with more", line(cost={"passes": 1, "columns": 1, "joules": 1}), "line 2, cost.joules: "),
    Row("passes below zero", line(cost={"forward_passes": -1, "tokens_computed": 1}),
        "line 2, cost.forward_passes: "),
    Row("columns without end", line(cost={"forward_passes": 1, "tokens_computed": float("inf")}),
        "line 2, cost.tokens_computed"),
    Row("a cost that is no cost", line(probe_cost=3), "line 2, probe_cost: "),
    Row("a tail above one", line(tail=1.5), "line 2, tail: Input should be less"),
    Row("an endless expectation", line(expected_length=float("inf")), "line 2, expected_length: "),
    Row("time that runs back", line(seconds=-1.0), "line 2, seconds: Input should be greater"),
    Row("a batch of a century", line(batch_seconds=1e10), "line 2, batch_seconds: Input should be less"),
    Row("an unknown finish", line(finish="bored"), "line 2, finish: Input should be 'ended'"),
    Row("an unknown kind", line(kind="guess"), "line 2, a line: "),
    Row("an empty kind", line(kind=None), "line 2, a line: "),
    Row("a model that is a number", line(model=7), "line 2, model: Input should be a valid string"),
    Row("a model of 5,000 letters", line(model="m" * 5000), "line 2, model: String should have"),
    Row("versions that are a list", line(versions=["1"]), "line 2, versions: "),
    Row("a version that is a number", line(versions={"lastword": 1}), "line 2, versions.lastword: "),
    Row("a nested sandbox", line(sandbox={"level": {"deep": 1}}), "line 2, sandbox.level."),
    Row("a text that is a list", line(text=["4"]), "line 2, text: Input should be a valid string"),
    Row("half a letter", line(text="\ud800"), "line 2, "),
    Row("a shortened that is a number", line(shortened=1), "line 2, shortened: "),
    Row("a field of a later version", line(schema=2), "line 2, schema: Unexpected keyword"),
    Row("an earlier version's name", line("cost", work={"passes": 1}), "line 2, cost: Field required"),
    Row("no weights", line("weights"), "line 2, weights: Field required"),
    Row("no dtype", line("dtype"), "line 2, dtype: Field required"),
    Row("a seed beyond 64 bits", line(seed=2**63), "line 2, seed: Input should be less"),
    Row("drift without a step", drifted(expected={}), "line 2, expected: Value error, later steps"),
    Row("drift without the first", drifted(expected={"2": 5.0}), "line 2, expected: "),
    Row("a step in words", drifted(expected={"0": 1.0, "two": 1.0}), "line 2, expected.two."),
    Row("drift below zero", drifted(expected={"0": -1.0}), "line 2, expected.0: Input should be"),
    Row("drift with a score", drifted(score=1.0), "line 2, score: Unexpected keyword"),
    Row("a list", GOOD + b"[1]\n", "line 2, a line: "),
    Row("an empty line", GOOD + b"\n" + GOOD, "line 2, a line: Invalid JSON"),
    Row("notes", b"my notes\n", "line 1, a line: Invalid JSON"),
    Row("bytes of zero", bytes(100), "line 1, a line: Invalid JSON"),
    Row("a deep list", b"[" * 100_000 + b"\n", "line 1, a line: Invalid JSON: recursion limit"),
    Row("a deep object", line(text=1)[:-3] + b'{"a":' * 100_000 + b"\n", "line 2, "),
    Row("a deep recipe", GOOD[:-1].replace(b'"slots":8', b'"slots":' + b"[" * 180 + b"]" * 180), "recipe: "),
    Row("UTF-16", GOOD.decode().encode("utf-16"), "line 1, a line: Invalid JSON"),
    Row("two records on a line", GOOD[:-1] + GOOD, "line 1, a line: Invalid JSON: trailing"),
    Row("a record cut in the middle", GOOD + GOOD[:400], "line 2 is incomplete, because the run was killed"),
    Row("a cut record among others", GOOD[:400] + b"\n" + GOOD, "line 1, a line: Invalid JSON"),
    Row("a packed journal", gzip.compress(GOOD), "line 1, a line: Invalid JSON"),
    Row("Parquet by another name", WHOLE, "line 1, a line: Invalid JSON"),
]  # fmt: skip

PARQUET = [
    Row("nothing", b"", "not a Parquet file"),
    Row("a journal by another name", GOOD, "not a Parquet file"),
    Row("the first half", WHOLE[: len(WHOLE) // 2], "not a Parquet file"),
    Row("all but a byte", WHOLE[:-1], "not a Parquet file"),
    Row("a byte more", WHOLE + b"x", "not a Parquet file"),
    Row("a table of something else", parquet(*to_row(ARM[0]), city=["Oslo"]), "row 1: "),
    Row("no horizon", parquet("horizon"), "row 1: not a record: horizon: Field required"),
    Row("no recipe in it", parquet("recipe"), "recipe: "),
    Row("a kind it is not", parquet(kind=["drift"] * 5), "row 1: "),
    Row("a field of a later version in it", parquet(schema=[2] * 5), "schema: Unexpected keyword"),
    Row("an index below zero in it", parquet(index=[0, 1, -7, 3, 4]), "row 3: not a record: index: "),
    Row("rows of none in it", parquet(rows=[0] * 5), "rows: Input should be greater"),
    Row("a score of five in it", parquet(score=[5.0] * 5), "score: Input should be less"),
    Row("a horizon no model has in it", parquet(horizon=[2**21] * 5), "horizon: Input should be less"),
    Row("passes below zero in it", parquet(cost_forward_passes=[-100] * 5), "Input should be greater"),
    Row("products beyond counting", parquet("cost_tokens_computed", prompt_tokens=[2**62] * 5,
        cost_tokens_skipped=[1] * 5), "Input should be less"),
    Row("an unknown finish in it", parquet(finish=["bored"] * 5), "finish: Input should be 'ended'"),
    Row("shortened twice", parquet(shortened=[2] * 5), "shortened: Input should be a valid boolean"),
    Row("drift below zero in it", parquet(records=DRIFT, expected_0=[-1.0] * 5), "expected.0: "),
    Row("a drift step in words", parquet(records=DRIFT, expected_two=[1.0] * 5), "expected.two."),
    Row("drift without its first", parquet("expected_0", records=DRIFT), "later steps are compared with"),
]  # fmt: skip
READ = [*LINES, *(row._replace(file="a.records.parquet") for row in PARQUET)]


@pytest.mark.parametrize("row", READ, ids=lambda row: row.name)
def test_what_is_no_record_is_refused_by_file_and_place(tmp_path, row):
    path = tmp_path / row.file
    path.write_bytes(row.content)
    with pytest.raises(SettingError) as refused:
        read_records(tmp_path)
    said = str(refused.value)
    assert row.phrase in said
    assert said.startswith(f"{path} cannot be read as records (")
    assert len(said) < 1000  # however long the line
    done = CliRunner().invoke(app, ["tables", "--records", str(tmp_path)])
    assert (done.exit_code, done.output.replace("\n", "")) == (1, f"lastword: {said}".replace("\n", ""))
    assert path.read_bytes() == row.content


def touch(path: Path) -> None:
    path.write_bytes(b"mine")


def folders(path: Path) -> None:
    (path / "a.jsonl").mkdir()


def pipe(name: str) -> Callable[[Path], None]:
    return lambda path: os.mkfifo(path / name)


def holds(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


def links(name: str, to: str) -> Callable[[Path], None]:
    return lambda path: (path / name).symlink_to(to)


def nothing(path: Path) -> None:
    pass


def records_in(name: str = "") -> Callable[[Path], object]:
    return lambda path: read_records(path / name)


def write_to(name: str = "a.jsonl") -> Callable[[Path], object]:
    return lambda path: Journal(path / name).append([answer()])


def export_to(name: str, *given: dict) -> Callable[[Path], object]:
    return lambda path: write_parquet([answer(**one) for one in given] or ARM, path / name)


MIXED = ({"sandbox": {"level": "plain"}}, {"sandbox": {"level": 1}})
# A name; what the folder holds; what is done with it; the error; a phrase of it.
FOLDERS: list[tuple[str, Callable, Callable, type[LastwordError], str]] = [
    ("read what is not there", nothing, records_in("none"), SettingError, "No such file or directory"),
    ("read a pipe", pipe("a.jsonl"), records_in(), SettingError, "(plain|regular)"),
    ("read a piped table", pipe("a.records.parquet"), records_in(), SettingError, "(plain|regular)"),
    ("read a link to nothing", links("a.jsonl", "none"), records_in(), SettingError, "No such file"),
    ("read a link to itself", links("a.jsonl", "a.jsonl"), records_in(), SettingError, "symbolic links"),
    ("read an endless device", nothing, records_in("/dev/zero"), SettingError, "(plain|regular)"),
    ("read a name of zeros", nothing, records_in("a\0b"), SettingError, "null"),
    ("read a long name", nothing, records_in("a" * 300), SettingError, "File name too long"),
    ("read below a file", holds("x", b""), records_in("x/a.jsonl"), SettingError, "Not a directory"),
    ("read any other file", holds("notes.txt", b"mine"), records_in("notes.txt"), SettingError, "line 1, "),
    ("write to a folder", folders, write_to(), SettingError, "(plain|regular)"),
    ("write to a pipe", pipe("a.jsonl"), write_to(), SettingError, "(plain|regular)"),
    ("write to a device", links("a.jsonl", "/dev/null"), write_to(), SettingError, "(plain|regular)"),
    ("write to a full device", links("a.jsonl", "/dev/full"), write_to(), SettingError, "(plain|regular)"),
    ("write below a file", holds("x", b""), write_to("x/a.jsonl"), SettingError, "not a folder to write to"),
    ("write below a link to itself", links("x", "x"), write_to("x/a.jsonl"), SettingError, "not a folder"),
    ("write to a link to itself", links("a.jsonl", "a.jsonl"), write_to(), SettingError, "cannot be writ"),
    ("write a long name", nothing, write_to("a" * 300), SettingError, "File name too long"),
    ("write a name of zeros", nothing, write_to("a\0b"), SettingError, "null"),
    ("write to notes", holds("a.jsonl", b"mine\n"), write_to(), SettingError, "left unchanged: move it"),
    ("write to unended notes", holds("a.jsonl", b"mine"), write_to(), SettingError, "left unchanged"),
    ("write to one object", holds("a.jsonl", b'{"a": 1}'), write_to(), SettingError, "left unchanged"),
    ("write to half an object", holds("a.jsonl", b'{"a": "b'), write_to(), SettingError, "left unchanged"),
    ("write to another schema", holds("a.jsonl", line(schema=2)), write_to(), SettingError, "line 2: schema"),
    ("write to no score", holds("a.jsonl", line(score=5)[:-1]), write_to(), SettingError, "line 2: score"),
    ("write to a table", holds("a.jsonl", WHOLE), write_to(), SettingError, "left unchanged"),
    ("export to another ending", nothing, export_to("a.csv"), SettingError, "does not end in .parquet"),
    ("export to a folder", lambda path: (path / "a.parquet").mkdir(), export_to("a.parquet"), SettingError,
     "is a folder"),
    ("export below a file", holds("x", b""), export_to("x/a.parquet"), SettingError, "not a folder"),
    ("export to a full device", links("a.parquet", "/dev/full"), export_to("a.parquet"), SettingError,
     "No space left"),
    ("export text and numbers in one", nothing, export_to("a.parquet", *MIXED), SettingError,
     "text in one record and a number in another"),
    ("draw below a file", holds("x", b""), lambda path: save_figures(ARM, path / "x"), SettingError,
     "not a folder to write to"),
    ("draw nothing", nothing, lambda path: save_figures(DRIFT, path), SettingError, "have no fixed canvas"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "act", "error", "phrase"), [row[1:] for row in FOLDERS], ids=[row[0] for row in FOLDERS]
)
def test_a_folder_is_refused_and_left_as_it_is(tmp_path, prepare, act, error, phrase):
    prepare(tmp_path)
    before = seen(tmp_path)
    with pytest.raises(error) as refused:
        act(tmp_path)
    assert re.search(phrase, str(refused.value))
    assert seen(tmp_path) == before


def seen(folder: Path) -> dict[str, object]:
    found = sorted(folder.rglob("*"))
    return {str(p): p.read_bytes() if not p.is_symlink() and p.is_file() else p.lstat().st_mode for p in found}


def test_every_row_has_a_name_of_its_own():
    names = [row.name for row in READ] + [row[0] for row in FOLDERS]
    assert len(set(names)) == len(names) >= 60


# What a model or a task may be called: a name that is no formula, no cell and no colour.
NAMES = ["$x_{$", r"a$\frac$b$", "a|b", "a\nb", "\x1b[31mred", "a\0b", "\u202e"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_whatever_a_model_is_called_is_one_cell_of_a_table(name):
    given = [answer(index=r.index, model=name, task=name) for r in ARM]
    for made in (*tables(given), *paper_tables(given)):
        table = made.markdown()
        rows = [row for row in table.splitlines() if row.startswith("|")]
        assert len({row.count("|") - row.count("\\|") for row in rows}) == 1, table
        assert all(row.isprintable() for row in table.splitlines())


@pytest.mark.parametrize("name", NAMES[:2], ids=ascii)
def test_a_name_in_a_figure_is_no_formula(tmp_path, name):
    given = [answer(index=r.index, model=name) for r in ARM]
    assert len(save_figures(given, tmp_path, ["svg"])) == 3
