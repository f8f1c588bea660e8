"""Two sets of records made by hand are compared sample by sample, so that every number can be checked."""

from dataclasses import replace

import pytest

from lastword.errors import SettingError, WrongTypeError
from lastword.evaluate import Journal, by_recipe, compare
from lastword.evaluate.records import RecordedCost
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from tests.evaluate.made import answer, drift

BASE, OTHER = Recipe(length=Fixed(8)), Recipe(length=Survival(64))


def arm(scores, recipe=BASE, **fields):
    """Records of one recipe, one per score."""
    return [answer(index=index, score=score, **{"recipe": recipe, **fields}) for index, score in enumerate(scores)]


FIRST = arm([1.0, 1.0, 0.0, 0.0])
SECOND = arm([1.0, 0.0, 1.0, 1.0], OTHER, cost=RecordedCost(1, 15, 9), seconds_share=0.25)


def test_scores_are_compared_sample_by_sample():
    found = compare(FIRST, SECOND)
    assert found.names == ("fixed, 8 slots", "paper, 64 slots")
    assert (found.samples, found.accuracy, found.difference) == (4, (0.5, 0.75), 0.25)
    assert found.standard_error == pytest.approx((2.75 / 3 / 4) ** 0.5)
    assert (found.won, found.lost, found.p_value) == (2, 1, 1.0)
    assert (found.left_out, found.tasks) == ({}, {})


def test_the_test_is_exact():
    assert compare(arm([0.0] * 10), arm([1.0] * 10, OTHER)).p_value == 2 / 2**10
    assert compare(FIRST, FIRST).p_value == 1.0


def test_costs_are_shares_of_the_first_s():
    found = compare(FIRST, SECOND)
    assert (found.forward_passes, found.tokens_computed, found.seconds) == (0.5, 0.75, 0.25)


@pytest.mark.parametrize("unknown", [0, 1])
@pytest.mark.parametrize(
    ("change", "costs"),
    [({"cost": None}, (None, None, 0.25)), ({"seconds_share": None}, (0.5, 0.75, None))],
    ids=["cost", "seconds"],
)
def test_a_cost_that_one_record_lacks_is_unknown(change, costs, unknown):
    sets = [list(FIRST), list(SECOND)]
    sets[unknown][2] = replace(sets[unknown][2], **change)
    found = compare(*sets)
    assert (found.forward_passes, found.tokens_computed, found.seconds) == costs


def test_samples_that_are_left_out_are_counted_by_reason():
    first = [*arm([1.0] * 4, prompt="a"), answer(index=7, prompt="a"), answer(index=8, prompt="a")]
    second = [replace(record, recipe=OTHER) for record in [*arm([1.0] * 4, prompt="a"), answer(index=9)]]
    second[2] = replace(second[2], prompt="b")
    found = compare(first, second)
    assert found.samples == 3
    assert found.left_out == {
        "which only the first answered": 2, "which only the second answered": 1, "whose prompts differ": 1,
    }  # fmt: skip
    lines = str(found).splitlines()
    assert [line for line in lines if line.startswith("left out: ")] == [
        "left out: 2 samples, which only the first answered",
        "left out: 1 samples, which only the second answered",
        "left out: 1 samples, whose prompts differ",
    ]


def test_a_published_record_without_a_digest_of_its_prompt_is_compared():
    assert compare(arm([1.0], prompt=None), arm([1.0], OTHER, prompt="a")).samples == 1


def test_sets_without_a_common_sample_are_refused_with_the_counts():
    with pytest.raises(SettingError, match=r"no sample in common \(1 which only the first answered; 2 which only the"):
        compare([answer(index=0)], [answer(index=n, recipe=OTHER) for n in (1, 2)])
    with pytest.raises(SettingError, match=r"no sample in common \(1 whose prompts differ\)"):
        compare(arm([1.0], prompt="a"), arm([1.0], OTHER, prompt="b"))


def test_several_tasks_are_compared_together_and_apart():
    first = [*arm([1.0, 0.0], task="a"), *arm([0.0, 0.0], task="b")]
    second = [*arm([1.0, 1.0], OTHER, task="a"), *arm([0.0, 1.0], OTHER, task="b")]
    found = compare(first, second)
    assert (found.samples, found.won) == (4, 2)
    assert {task: (one.samples, one.accuracy) for task, one in found.tasks.items()} == {
        "a": (2, (0.5, 1.0)), "b": (2, (0.0, 0.5)),
    }  # fmt: skip
    assert "  b: 2 samples, +0.500 ± 0.500, p = 1" in str(found)


def test_the_text_names_both_recipes_and_their_difference():
    assert str(compare(FIRST, SECOND)).splitlines() == [
        "paper, 64 slots, compared with fixed, 8 slots on 4 samples",
        "accuracy 0.750, not 0.500: +0.250 ± 0.479, 2 won, 1 lost, p = 1",
        "cost as a share of the first's: forward passes 0.5, tokens computed 0.75, seconds 0.25",
    ]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": "n"}, ("m", "n")),
        ({"seed": 3}, ("seed 0", "seed 3")),
        ({"recipe": OTHER, "dtype": "bfloat16"}, ("fixed, 8 slots, float32", "paper, 64 slots, bfloat16")),
        ({}, ("fixed, 8 slots", "fixed, 8 slots")),
    ],
    ids=str,
)
def test_the_names_contain_what_differs(change, names):
    assert compare(FIRST, [replace(record, **change) for record in FIRST]).names == names


# Where records come from


def test_records_may_be_in_files_and_folders(tmp_path):
    Journal(tmp_path / "first.jsonl").append([*FIRST, drift()])
    (tmp_path / "more").mkdir()
    Journal(tmp_path / "more" / "second.jsonl").append(SECOND)
    expected = compare(FIRST, SECOND)
    assert compare(tmp_path / "first.jsonl", tmp_path / "more") == expected
    assert compare(str(tmp_path / "first.jsonl"), SECOND) == expected


def test_the_latest_record_of_a_sample_counts():
    corrected = [*FIRST, replace(FIRST[2], score=1.0)]
    assert compare(corrected, SECOND).accuracy == (0.75, 0.75)


def test_the_records_of_several_recipes_are_refused_and_can_be_divided():
    both = [*FIRST, *SECOND]
    with pytest.raises(
        SettingError, match=r"records_a has the answers of 2 .* \(m, fixed:8, .*; m, survival:64, .*by_re"
    ):
        compare(both, SECOND)
    with pytest.raises(SettingError, match="records_b has the answers of 2 recipes or models"):
        compare(FIRST, [*FIRST, replace(FIRST[0], model="n")])
    assert list(by_recipe(both)) == [BASE, OTHER]
    assert compare(*by_recipe(both).values()) == compare(FIRST, SECOND)


@pytest.mark.parametrize("records", [[], [drift()]], ids=["empty", "drift"])
def test_a_set_without_answers_is_refused(records):
    with pytest.raises(SettingError, match="records_b has no answers; measure some with lastword eval"):
        compare(FIRST, records)


@pytest.mark.parametrize(
    "records",
    [3, None, ["a"], {"a": FIRST}, FIRST[0], iter(FIRST)],
    ids=["number", "nothing", "texts", "dictionary", "record", "iterator"],
)
def test_what_is_no_set_of_records_is_refused(records):
    with pytest.raises(WrongTypeError, match=r"compare\(records_a=.*give a list of records, or a file or folder"):
        compare(records, SECOND)
