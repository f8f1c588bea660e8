"""Tests of the tables of records and models: they are complete and agree with the files and the model cards."""

import json
import math
import re
import struct

import pytest

from benchmarks import catalogue, fast, kept
from benchmarks.arms import FRESH, MODELS
from benchmarks.study import RECORDS
from lastword.embedded import FOLDER


def cells(table):
    """Return the other cells of each row by its first cell."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {first.strip("`"): others for first, *others in rows[1:]}


def test_every_folder_of_records_has_a_row():
    assert {folder.path for folder in catalogue.FOLDERS} == {path.name for path in RECORDS.parent.iterdir()}


def test_every_file_of_records_belongs_to_one_row():
    listed = [path for folder in catalogue.FOLDERS for path in catalogue.files_of(folder)]
    files = [path for path in RECORDS.parent.rglob("*") if path.is_file()]
    assert sorted(listed) == sorted(files)


def test_a_row_has_the_hardware_and_the_number_of_records():
    rows = cells(catalogue.records())
    for folder, dtype in ((kept.SPEED, "float32"), (kept.GPU_SPEED, "bfloat16")):
        answers = kept.timed(folder)
        (hardware,) = {answer.hardware for answer in answers}
        assert rows[folder.name][1:] == [f"{hardware}, {dtype}", f"{len(answers):,} answers"]
    results = [arm for split in ("validation", FRESH) for arms in fast.read(split).values() for arm in arms.values()]
    assert rows["fast"][2] == f"{sum(len(result.correct) for result in results):,} answers"
    logs = [*(RECORDS.parent / "training").iterdir()]
    assert rows["training"][2] == f"{len(logs)} files"
    assert all(page and hardware and size for page, hardware, size in rows.values())


def test_parameters_are_counted_from_the_header(tmp_path):
    shapes = {"a": [2, 3], "b": [5], "scalar": []}
    header = {name: {"shape": shape} for name, shape in shapes.items()} | {"__metadata__": {}}
    data = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    assert catalogue.parameters(path) == sum(map(math.prod, shapes.values())) == 12


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_models_agrees_with_the_model_cards(name):
    family, rows, start, steps, seconds, _, accuracy = cells(catalogue.models())[name]
    card = (FOLDER / name / "README.md").read_text()
    assert f"checkpoint format of {family}" in card
    assert re.search(rf"end-token signal is the probability that .* \({rows}\)\.", card)
    assert (f"starts from the weights of `{start}`" in card) or (f"starts from {start}" in card)
    number, _, resumed = steps.replace(",", "").partition(" resumed at ")
    assert f"{number} steps in {seconds} s" in card
    assert f"resumed at step {resumed}" in card if resumed else "resumed" not in card
    assert re.search(rf"\| {accuracy} \|$", card, re.MULTILINE)
