"""Whom a request is handed to, as a function of what replicas report."""

import random

import pytest

from lastword.serve.scheduler import (
    ReplicaReport,
    less_loaded_of_two,
    mean_request_tokens,
    predicted_load,
)


def test_a_report_survives_being_carried_as_plain_data():
    report = ReplicaReport(2.5, 0.5, 5, 4, 1)
    assert ReplicaReport.of(report.to_data()) == report
    assert ReplicaReport.of({}) == ReplicaReport()
    assert ReplicaReport.of({**report.to_data(), "of a newer version": 1}) == report


def test_what_was_handed_over_since_the_report_counts():
    report = ReplicaReport(columns=4.0, each=2.0, asking=2)
    assert predicted_load(report, 2, default=9.0) == 4.0
    assert predicted_load(report, 5, default=9.0) == 4.0 + 3 * 2.0
    assert predicted_load(report, 0, default=9.0) == 4.0  # the report is older, not wrong
    assert predicted_load(ReplicaReport(), 3, default=0.5) == 1.5  # nothing was reported yet


def test_what_is_usual_is_what_others_say():
    assert mean_request_tokens([ReplicaReport(), ReplicaReport(each=2.0), ReplicaReport(each=4.0)]) == 3.0
    assert mean_request_tokens([ReplicaReport()]) == 1.0


def test_the_one_with_less_work_is_taken_of_two():
    draw = random.Random(0)
    assert {less_loaded_of_two({"a": 1.0, "b": 2.0}, draw) for _ in range(50)} == {"a"}
    assert less_loaded_of_two({"a": 1.0}, draw) == "a"


def test_of_many_the_busiest_is_never_taken_and_the_others_all_are():
    draw, work = random.Random(0), {n: float(n) for n in range(5)}
    taken = [less_loaded_of_two(work, draw) for _ in range(2000)]
    assert {*taken} == {0, 1, 2, 3}
    assert taken.count(0) == pytest.approx(2000 * 2 / 5, rel=0.1)  # whenever it is drawn


def test_equal_work_is_shared():
    draw = random.Random(0)
    taken = [less_loaded_of_two({"a": 0.0, "b": 0.0}, draw) for _ in range(400)]
    assert 150 < taken.count("a") < 250
