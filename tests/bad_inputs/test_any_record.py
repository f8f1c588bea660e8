"""Whatever a journal or a Parquet file holds: it gives records that tables can take, or one of our errors."""

from __future__ import annotations

import json
from contextlib import suppress

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from benchmarks.paper.tables import paper_tables
from lastword.errors import SettingError
from lastword.evaluate import Journal
from lastword.evaluate.parquet import read_parquet, to_columns, to_row
from lastword.evaluate.records import from_line, to_line
from lastword.evaluate.tables import tables
from tests.bad_inputs.mutations import EXAMPLES, hold, mutated_bytes
from tests.evaluate.made import answer, drift

FULL = answer(
    text="4", prompt="0123", sandbox={"level": "plain", "seconds": 1.5}, expected_length=4.5, tail=0.25,
    seconds=1.0,
)  # fmt: skip
ANSWER, DRIFT = json.loads(to_line(FULL)), json.loads(to_line(drift()))
ARM = [answer(index=index) for index in range(5)]
DRIFTS = [drift(index=index) for index in range(5)]
SCALARS = (
    st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), True, "", "x", float("nan"), None])
    | st.integers(-9, 9)
    | st.floats()
)


def shown(records):
    """Whatever is a record can be compared."""
    given = [*ARM, *records]
    for table in (*tables(given, against_fixed=True), *paper_tables(given)):
        table.markdown()


def read(line):
    with suppress(ValueError):
        record = from_line(line)
        assert from_line(to_line(record)) == record
        shown([record])


def table_bytes(columns):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


TABLE = table_bytes(to_columns([to_row(record) for record in ARM]))


def read_table(data):
    with suppress(ValueError):
        shown(read_parquet(data))


@EXAMPLES
@pytest.mark.parametrize("document", [ANSWER, DRIFT], ids=["answer", "drift"])
def test_any_line(examples, document):
    hold(examples, mutated_bytes(document), read)


@EXAMPLES
def test_any_journal_keeps_its_records_or_is_left_as_it_is(examples, tmp_path):
    path = tmp_path / "a.jsonl"
    good = to_line(answer(index=7)) + b"\n"

    def append(line):
        path.write_bytes(good + line)
        try:
            Journal(path).append([answer(index=8)])
        except SettingError:
            assert path.read_bytes() == good + line
        else:
            records = list(Journal(path))
            assert [record.index for record in (records[0], records[-1])] == [7, 8]
            assert len(records) <= 3

    hold(examples, mutated_bytes(ANSWER), append)


@EXAMPLES
@pytest.mark.parametrize("records", [ARM, DRIFTS], ids=["answers", "drift"])
def test_any_columns(examples, records):
    columns = to_columns([to_row(record) for record in records])
    names = st.sampled_from([*columns, "cost_tokens_skipped", "expected_", "expected_1", "cost", "other"])
    values = st.lists(SCALARS, min_size=5, max_size=5) | SCALARS.map(lambda one: [one] * 5)
    changes = st.dictionaries(names, values | st.none(), min_size=1, max_size=3)

    def check(changed):
        kept = {name: column for name, column in (columns | changed).items() if column is not None}
        with suppress(pyarrow.ArrowException, OverflowError):
            read_table(table_bytes(kept))

    hold(examples, changes, check)


@EXAMPLES
def test_any_bytes(examples):
    cuts = st.tuples(st.integers(0, len(TABLE)), st.integers(0, len(TABLE)), st.binary(max_size=9))
    hold(examples, cuts, lambda cut: read_table(TABLE[: cut[0]] + cut[2] + TABLE[cut[1] :]))
