"""Whatever a journal or an archive holds: it gives records that tables can take, or one of our errors."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import strategies as st

from lastword.errors import SettingError
from lastword.evaluate import Journal, packed
from lastword.evaluate.archive import pack, unpack
from lastword.evaluate.records import from_line, to_line
from lastword.paper.overview import tables
from lastword.paper.tables import paper_tables
from tests.bad_inputs.mutations import EXAMPLES, hold, mutated, mutated_bytes
from tests.evaluate.made import answer, drift

pytestmark = pytest.mark.usefixtures("unchecked")

FULL = answer(
    text="4", prompt="0123", sandbox={"level": "plain", "seconds": 1.5}, expected_length=4.5, tail=0.25,
    seconds=1.0,
)  # fmt: skip
ANSWER, DRIFT = json.loads(to_line(FULL)), json.loads(to_line(drift()))
ARM = [answer(index=index) for index in range(5)]
WHOLE = pack(ARM)
INSIDE = lzma.decompress(WHOLE)
DRIFTS = pack([drift(index=index) for index in range(5)])
KINDS = pytest.mark.parametrize("whole", [WHOLE, DRIFTS], ids=["answers", "drift"])

INTEGERS = st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)]) | st.integers(-9, 9)


def shown(records):
    """Whatever is a record can be compared."""
    tables([*ARM, *records])
    for table in paper_tables([*ARM, *records]):
        table.markdown()


def read(line):
    with suppress(ValueError):
        record = from_line(line)
        assert from_line(to_line(record)) == record
        shown([record])


def unpacked(data):
    with suppress(ValueError, SettingError):
        shown(unpack(data))


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
@KINDS
def test_any_header(examples, whole):
    layout, header, columns = lzma.decompress(whole).split(b"\n", 2)

    def check(line):
        inside = b"\n".join([layout, line.replace(b"\n", b" "), columns])
        unpacked(lzma.compress(inside, preset=0))

    hold(examples, mutated_bytes(json.loads(header)), check)


@EXAMPLES
@KINDS
def test_any_columns(examples, whole, monkeypatch):
    monkeypatch.setattr(packed, "FILTERS", [{"id": lzma.FILTER_LZMA2, "preset": 0}])  # fast
    header, columns = packed.unpack(whole)
    names = st.sampled_from([*columns, "step_1", "step_", "other"])
    values = st.lists(INTEGERS, min_size=5, max_size=5) | INTEGERS.map(lambda one: [one] * 5)
    changes = st.dictionaries(names, values | st.none(), min_size=1, max_size=3)

    def check(changed):
        given = (columns | changed).items()
        kept = {name: np.array(own, dtype=np.int64) for name, own in given if own is not None}
        unpacked(packed.pack(header, kept or columns))

    hold(examples, changes, check)


@EXAMPLES
def test_any_layout(examples):
    first, rest = INSIDE.split(b"\n", 1)
    layouts = mutated(json.loads(first)).map(lambda layout: json.dumps(layout).encode())
    hold(examples, layouts, lambda line: unpacked(lzma.compress(line + b"\n" + rest, preset=0)))


@EXAMPLES
@pytest.mark.parametrize("inside", [False, True], ids=["packed", "unpacked"])
def test_any_bytes(examples, inside):
    data = INSIDE if inside else WHOLE
    cuts = st.tuples(st.integers(0, len(data)), st.integers(0, len(data)), st.binary(max_size=9))

    def check(cut):
        first, last, between = cut
        spliced = data[:first] + between + data[last:]
        unpacked(lzma.compress(spliced, preset=0) if inside else spliced)

    hold(examples, cuts, check)
