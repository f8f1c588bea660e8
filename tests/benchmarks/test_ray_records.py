"""Tests of the benchmarks on Ray: small runs, and tables of the kept records."""

import json

import pytest

from benchmarks import ray_data, ray_streams


@pytest.mark.full
def test_streams_are_shared_by_the_http_processes(tmp_path):
    pytest.importorskip("ray")
    ray_streams.main(["--streams", "64", "--http-servers", "2", "--out", str(tmp_path / "record.json")])
    (line,) = json.loads((tmp_path / "record.json").read_text())["lines"]
    assert line["chunks"] > 2
    assert min(line["cpu_ms"].values()) > 0  # the first, the further HTTP process and the replicas all worked
    assert ray_streams.table(tmp_path / "record.json").splitlines()[2].startswith("| 2 |")


def test_runs_that_did_not_end_are_not_given_seconds(tmp_path):
    line = {"arm": "data", "fault": "stop", "first": 19.0, "seconds": 150.4, "cpu": 20.0, "driver_mib": 603}
    path = tmp_path / "record.json"
    path.write_text(
        json.dumps({"lines": [line | {"answers": 16, "prompts": 32}, line | {"answers": 32, "prompts": 32}]})
    )
    endless, ended = ray_data.table(path).splitlines()[2:]
    assert "| not in 150 | 16 |" in endless
    assert "| 150 | 32 |" in ended
