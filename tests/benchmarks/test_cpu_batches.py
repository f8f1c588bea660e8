"""Tests of the benchmark of batches on a CPU."""

import json

from benchmarks import cpu_batches


def test_a_batch_answers_as_its_prompts_alone(tmp_path):
    path = tmp_path / "record.json"
    cpu_batches.main(["--prompts", "2", "--recipes", "fast, dual cache", "--quantizations", "none", "--out", str(path)])
    (line,) = json.loads(path.read_text())["lines"]
    assert line["equal"] == line["prompts"] == 2
    assert min(line["batch"], line["alone"]) > 0
    assert cpu_batches.table(path).splitlines()[2].startswith("| float32 | fast, dual cache | 2 |")


def test_no_batch_of_the_kept_record_is_slower_than_its_prompts_alone():
    lines = json.loads(cpu_batches.RECORD.read_text())["lines"]
    assert min(line["alone"] / line["batch"] for line in lines) >= 1
    assert all(line["equal"] == line["prompts"] for line in lines if line["dtype"] == "float32")
