"""The page on readings shows what their records say."""

import json
from pathlib import Path

import pytest
import torch

import lastword
from benchmarks import readings
from lastword.survival.distribution import LengthDistribution
from lastword.tasks import load_frozen

PAGE = (Path(__file__).parent.parent.parent / "docs" / "measured" / "readings.md").read_text()


def test_the_page_shows_its_records():
    assert list(readings.all_records()) == list(readings.MODELS)
    for table in readings.tables().values():
        assert table in PAGE


def test_records_speak_of_reference_answers_and_what_the_model_says_today():
    model = lastword.load("tiny-llada-base", device="cpu")
    records = [r for r in readings.all_records()["tiny-llada-base"] if r["family"] == "algebra"]
    fresh = list(readings.measure(model, load_frozen("test", "algebra")[:3], rows=2))
    for kept, again in zip(records, fresh):
        assert kept["length"] == again["length"]
        assert kept["picked"] == again["picked"]
        assert kept["mean"] == pytest.approx(again["mean"], abs=0.05)


def test_a_length_counts_the_slot_of_the_end_token():
    model = lastword.load("tiny-llada-base", device="cpu")
    (example,) = load_frozen("test", "known_hazard")[:1]
    (record,) = readings.measure(model, [example], rows=1)
    assert record["length"] == len(example.answer.split()) + 1
    truth = readings.true_lengths('["uniform", 10, 20]')
    assert truth.mean.item() == pytest.approx(16)
    assert truth.quantile(0.999).item() == 21


def test_distance_and_deviation_by_hand():
    one = LengthDistribution.from_density(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    other = LengthDistribution.from_density(torch.tensor([[0.0, 0.5, 0.0, 0.5]]))
    assert readings.distance(one, other) == pytest.approx(2)  # half of it 1 slot, half 3
    assert readings.deviation(other) == pytest.approx(1)
    assert readings.deviation(one) == 0


def test_writers_of_one_question_differ_in_their_answers_only():
    prompts = readings.by_prompt("algebra", 1, writers=60)
    answers = [answer for mine in prompts.values() for answer in mine]
    assert len(answers) == 60
    assert len({answer.splitlines()[-1] for answer in answers}) == 1  # one question, one result
    assert max(len(set(mine)) for mine in prompts.values()) > 1


def test_a_length_is_compared_with_the_median_of_the_others():
    assert readings.deviations_of([4, 1, 2]) == [2.0, 0.5, 2.5]  # of 1, 2 and 4
    assert readings.deviations_of([7, 7, 7]) == [0.0, 0.0, 0.0]


def test_the_floor_lies_below_every_reading():
    floors = json.loads(readings.FLOOR.read_text())["families"]
    for records in readings.all_records().values():
        for family, floor in floors.items():
            mine = [r for r in records if r["family"] == family]
            best = min(readings.median_error(mine, name) for name in readings.READINGS)
            assert best > floor["deviation"] - 2  # both are means of a few hundred answers
