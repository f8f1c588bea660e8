"""Parquet files hold every field of a record, and anything else in them is refused."""

import json
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest

from lastword.errors import SettingError
from lastword.evaluate import Journal, parquet, read_records
from lastword.evaluate.parquet import read_parquet, to_columns, to_row, write_parquet
from lastword.evaluate.records import RecordedCost
from lastword.evaluate.tables import latest
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import answer, drift

RECORDS = [
    answer(
        index=0, prompt="0123", text="an answer", expected_length=4.5, tail=0.25, seconds=1.5,
        sandbox={"level": "plain", "wall_seconds": 10.0, "processes": 64},
    ),
    answer(index=1, recipe=Recipe(length=Survival(64)), finish="truncated", length=None, shortened=True),
    answer(index=2, cost=None, probe_cost=None, seconds_share=None, refused=True),
    answer(index=5, seconds_share=None, batch_seconds=6.0, rows=4),  # as before 0.2
    drift(index=3, expected={"0": 1.5, "2": 2.1234, "10": 7.0}),
    drift(index=4, expected={"0": 1.5}),
]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.parquet"


def changed(records=RECORDS, **columns):
    """The content of a file with other columns; `...` removes one."""
    kept = to_columns([to_row(record) for record in records]) | columns
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({k: v for k, v in kept.items() if v is not ...}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("chosen", [slice(None), slice(0, 4), slice(2, 3), slice(3, 4), slice(4, 6)])
def test_records_come_back_as_they_were(path, chosen):
    write_parquet(RECORDS[chosen], path)
    assert read_records(path) == RECORDS[chosen]


def test_other_tools_read_flat_columns(path):
    write_parquet(RECORDS, path)
    table = pyarrow.parquet.read_table(path)
    assert table.num_rows == len(RECORDS)
    assert table.column("cost_tokens_computed").to_pylist()[:3] == [20, 20, None]
    assert json.loads(table.column("recipe").to_pylist()[0])["length"]["name"] == "fixed"


def test_tokens_may_be_given_as_those_that_were_skipped():
    kept = replace(RECORDS[0], cost=RecordedCost(2, 30))
    content = changed([kept], cost_tokens_computed=..., cost_tokens_skipped=[6])
    assert read_parquet(content) == [kept]  # 2 passes over 10 + 8 tokens


def test_in_a_folder_only_named_files_are_records(tmp_path):
    Journal(tmp_path / "a.jsonl").append(RECORDS)
    write_parquet(RECORDS, tmp_path / "export.parquet")
    assert len(read_records(tmp_path)) == len(RECORDS)
    write_parquet(RECORDS[:3], tmp_path / "a.records.parquet")
    found = read_records(tmp_path)
    assert len(found) == len(RECORDS) + 3
    assert len(latest(found)) == len(RECORDS)  # each counts once


@pytest.mark.parametrize("length", [0, 1, 20, 300, -1])
def test_a_truncated_file_is_refused(path, length):
    path.write_bytes(changed()[:length])
    with pytest.raises(SettingError, match=r"r\.parquet cannot be read as records \(not a Parquet file"):
        read_records(path)


ONE = RECORDS[:1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"score": [1.5]}, "row 1: .*score: Input should be less"),
        ({"score": ...}, "row 1: .*score: Field required"),
        ({"horizon": [-5]}, "row 1: .*horizon: Input should be greater"),
        ({"rows": [0]}, "row 1: .*rows: Input should be greater"),
        ({"finish": ["bored"]}, "row 1: .*finish: Input should be"),
        ({"shortened": [2]}, "row 1: .*shortened: Input should be a valid boolean"),
        ({"index": ["one"]}, "row 1: .*index: Input should be a valid integer"),
        ({"kind": ["guess"]}, "row 1: .*kind: "),
        ({"recipe": ["fixed:8"]}, "row 1: .*recipe"),
        ({"recipe": [7]}, "row 1: .*recipe: "),
        ({"recipe": ...}, "row 1: .*recipe: "),
        ({"seed": [float("nan")]}, "row 1: .*seed: "),
        ({"later": [2]}, "row 1: .*later: Unexpected keyword"),
        ({"cost_joules": [2]}, "row 1: .*joules: Unexpected keyword"),
        ({"cost_forward_passes": [-1]}, "row 1: .*forward_passes: Input should be greater"),
        ({"cost_tokens_skipped": [2**62]}, "row 1: .*tokens_computed: "),
        ({"cost_tokens_skipped": ["x"]}, "row 1: "),
        ({"cost_tokens_skipped": [1], "horizon": ...}, "row 1: .*horizon"),
        ({"cost": [1]}, "row 1: "),
        ({"expected_two": [1.0]}, "row 1: .*expected"),
    ],
)
def test_values_that_are_no_record_are_refused_with_their_row(path, columns, reason):
    path.write_bytes(changed(ONE, **columns))
    with pytest.raises(SettingError, match=reason):
        read_records(path)


def test_a_file_of_too_many_bytes_is_refused(path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BYTES", 2**10)
    path.write_bytes(changed())
    with pytest.raises(SettingError, match="more than 1024 bytes of columns"):
        read_records(path)
