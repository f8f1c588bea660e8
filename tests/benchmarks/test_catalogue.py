"""The tables of records and model cards hold everything there is, and the cards say the same."""

import json
import math
import re
import struct

import pytest

from benchmarks import catalogue, kept, pages
from benchmarks.arms import MODELS, recipe_of
from benchmarks.study import RECORDS
from lastword.embedded import FOLDER


def cells(table):
    """Rows by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {first.strip("`"): rest for first, *rest in rows[1:]}


def test_every_folder_of_records_has_a_row():
    assert {row.path for row in catalogue.KEPT} == {path.name for path in RECORDS.parent.iterdir()}


def test_every_file_of_records_is_counted_once():
    counted = [path for row in catalogue.KEPT for path in catalogue.files_of(row)]
    there = [path for path in RECORDS.parent.rglob("*") if path.is_file()]
    assert sorted(counted) == sorted(there)


def test_a_row_says_where_its_records_were_made_and_how_many_there_are():
    rows = cells(catalogue.records())
    alone = [
        answer
        for model in MODELS
        for arm in ("fixed 256", "survival")
        for answer in kept.answers_of(model, recipe_of(arm), folder=kept.SPEED)
    ]
    (hardware,) = {answer.hardware for answer in alone}
    assert rows["speed"][2] == f"{hardware}, float32"
    assert rows["speed"][3] == f"4 files, {len(alone) // 2 * 6} answers"
    assert all(row[2] for row in rows.values())


def test_parameters_are_counted_from_the_header(tmp_path):
    shapes = {"a": [2, 3], "b": [5], "scalar": []}
    header = {name: {"shape": shape} for name, shape in shapes.items()} | {"__metadata__": {}}
    data = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    assert catalogue.parameters(path) == sum(map(math.prod, shapes.values())) == 12


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_models_says_what_their_cards_say(name):
    page = (pages.DOCS / "measured" / "index.md").read_text()
    family, rows, start, steps, seconds, _, accuracy = cells(page)[name]
    card = (FOLDER / name / "README.md").read_text()
    assert f"checkpoint format of {family}" in card
    assert f"Its end-token signal is that of {rows}:" in card
    assert f"from {start}" in card or f"`{start}`" in card
    number, _, resumed = steps.replace(",", "").partition(" resumed at ")
    assert f"{number} steps in {seconds} s" in card
    assert f"resumed at step {resumed}" in card if resumed else "resumed" not in card
    assert re.search(rf"\| {accuracy} \|$", card, re.MULTILINE)
