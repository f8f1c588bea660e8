"""Tests of the benchmark of batches of many lines."""

from benchmarks import batch_memory


def test_every_line_is_answered():
    run = batch_memory.measure(3_000, in_order=True)
    assert run["answered"] == 3_000
    assert run["memory_mib"] >= run["base_mib"] > 0 < run["answers_mb"]


def test_the_kept_record_shows_that_memory_stays_under_a_gigabyte():
    rows = [row.split(" | ") for row in batch_memory.table().splitlines()[2:]]
    assert max(int(row[2].replace(",", "")) for row in rows) < 1024
    assert rows[-1][0] == "| 10,000,000"
