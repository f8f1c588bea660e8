"""Tests of the errors of interpretations: the kept records, and the floor that no predictor can go below."""

import json
import statistics

import pytest
import torch

import lastword
from benchmarks import interpretations, pages
from lastword.survival.distribution import LengthDistribution
from lastword.tasks import load_frozen

PAGE = pages.DOCS / "measured" / "interpretations.md"


def test_the_page_shows_the_tables_of_its_records():
    assert list(interpretations.all_records()) == list(interpretations.MODELS)
    text = PAGE.read_text()
    for table in interpretations.tables().values():
        assert table in text


def test_the_tables_show_bias_error_and_coverage_of_the_records():
    records = interpretations.all_records()
    rows = interpretations.tables()["interpretations"].splitlines()[2:]
    assert len(rows) == len(records) * (len(interpretations.ON_PAGE) + 1)
    floors = interpretations.read_floor()
    floor = statistics.mean(floors[family]["deviation"] for family in interpretations.BENCHMARKS)
    for model, of_model in records.items():
        answers = [record for record in of_model if record["family"] in interpretations.BENCHMARKS]
        errors = {}
        for name in ("hazard", "auto"):
            lengths, means = [r["length"] for r in answers], [r["mean"][name] for r in answers]
            errors[name] = statistics.mean(abs(mean - length) for mean, length in zip(means, lengths, strict=True))
            within = sum(r["length"] <= r["quantile"][name][1] for r in answers) / len(answers)
            cells = [
                model, name, f"{sum(means) / sum(lengths) - 1:+.1%}", f"{errors[name]:.1f}",
                f"{errors[name] / errors['hazard']:.2f}", f"{within:.1%}",
            ]  # fmt: skip
            assert f"| {' | '.join(cells)} |" in rows
        assert f"| {model} | *spread among writers* | | {floor:.1f} | {floor / errors['hazard']:.2f} | |" in rows


def test_the_kept_records_are_measured_again():
    model = lastword.load("tiny-llada-base", device="cpu")
    records = [r for r in interpretations.all_records()["tiny-llada-base"] if r["family"] == "algebra"]
    fresh = list(interpretations.measure(model, load_frozen("test", "algebra")[:3], batch_size=2))
    assert len(fresh) == 3
    for old, new in zip(records, fresh):
        assert old["length"] == new["length"]
        assert old["picked"] == new["picked"]
        assert old["mean"] == pytest.approx(new["mean"], abs=0.05)


def test_a_length_counts_the_slot_of_the_end_token():
    model = lastword.load("tiny-llada-base", device="cpu")
    (example,) = load_frozen("test", "known_hazard")[:1]
    (record,) = interpretations.measure(model, [example], batch_size=1)
    assert record["length"] == len(example.answer.split()) + 1
    truth = interpretations.true_lengths('["uniform", 10, 20]')
    assert truth.mean.item() == pytest.approx(16)
    assert truth.quantile(0.999).item() == 21


def test_distance_and_deviation_of_small_distributions():
    first = LengthDistribution.from_density(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    second = LengthDistribution.from_density(torch.tensor([[0.0, 0.5, 0.0, 0.5]]))
    assert interpretations.distance(first, second) == pytest.approx(2)  # half of the probability moves 1 slot, half 3
    assert interpretations.deviation(second) == pytest.approx(1)
    assert interpretations.deviation(first) == 0


def test_writers_of_a_question_have_the_same_result_and_different_answers():
    by_prompt = interpretations.by_prompt("algebra", 1, writers=60)
    answers = [answer for of_prompt in by_prompt.values() for answer in of_prompt]
    assert len(answers) == 60
    assert len({answer.splitlines()[-1] for answer in answers}) == 1
    assert max(len(set(of_prompt)) for of_prompt in by_prompt.values()) > 1


def test_a_length_is_compared_with_the_median_of_the_others():
    assert interpretations.deviations_of([4, 1, 2]) == [2.0, 0.5, 2.5]  # of 1, 2 and 4
    assert interpretations.deviations_of([7, 7, 7]) == [0.0, 0.0, 0.0]


def test_no_interpretation_is_better_than_the_floor():
    floors = json.loads(interpretations.FLOOR.read_text())["families"]
    for records in interpretations.all_records().values():
        for family, floor in floors.items():
            of_family = [record for record in records if record["family"] == family]
            best = min(interpretations.median_error(of_family, name) for name in interpretations.INTERPRETATIONS)
            assert best > floor["deviation"] - 2  # both are means of a few hundred answers
