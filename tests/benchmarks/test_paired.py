"""Tests of paired comparisons: their tables, their records, and the cache that starts with the probe's keys."""

import json

import pytest

import lastword
from benchmarks.float8 import FLOAT8
from benchmarks.paired import PairedResult, Record
from benchmarks.probe_cache import PROBE_CACHE, ProbeCache
from lastword.policies.cache import DualCache
from lastword.recipe.recipe import Recipe

RECORD = Record(
    recipe="fast",
    split="validation",
    per_family=1,
    environment={"hardware": "none"},
    models=[
        PairedResult(model="a", before="11110", after="11001", same="11000"),
        PairedResult(model="b", before="11111", after="11111", same="11111"),
    ],
)


def test_the_table_counts_prompts_won_and_lost():
    head, _, first, second, both = FLOAT8.table(RECORD).splitlines()
    assert "| stored | fp8 |" in head
    assert first == "| a | 5 | 80.0 | 60.0 | -20.00 | 1, 2 | 1 | 40.0% |"
    assert second == "| b | 5 | 100.0 | 100.0 | +0.00 | 0, 0 | 1 | 100.0% |"
    assert both == "| all | 10 | 90.0 | 80.0 | -10.00 | 1, 2 | 1 | 70.0% |"


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    """The name of the environment has changed."""
    data = RECORD.model_dump()
    data["surroundings"] = data.pop("environment")
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data))
    assert FLOAT8.read(path) == RECORD


def test_answers_are_compared_in_order():
    result = PairedResult.of("a", [(True, "x"), (False, "y")], [(True, "z"), (True, "y")])
    assert (result.before, result.after, result.same) == ("10", "11", "01")
    with pytest.raises(ValueError, match="shorter"):
        PairedResult.of("a", [(True, "x")], [])


@pytest.mark.full
@pytest.mark.parametrize("comparison", [FLOAT8, PROBE_CACHE], ids=["float8", "probe-cache"])
def test_a_run_writes_both_results_for_every_prompt(tmp_path, monkeypatch, capsys, comparison):
    out = tmp_path / "record.json"
    arguments = ["", "run", "--models", "tiny-llada-base", "--per-family", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    comparison.main("A comparison.")
    (result,) = comparison.read(out).models
    assert len(result.before) == len(result.after) == len(result.same) == 5
    assert "| tiny-llada-base | 5 |" in capsys.readouterr().out


def test_a_probe_of_the_planned_canvas_gives_the_same_tokens_as_a_separate_pass():
    """The probe and the planned canvas have the same slots, so the keys and values are equal too."""
    model = lastword.load("tiny-llada-base", device="cpu")
    prompts = ["Calculate 3 + 4.", "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"]
    recipe = Recipe(length=lastword.Fixed(48), block=16, cache=DualCache(prompt_every=0))
    probed = ProbeCache(prompt_every=0, model=model, limit=48)
    before, after = (lastword.generate(model, prompts, recipe=recipe, cache=cache) for cache in (recipe.cache, probed))
    assert [answer.tokens for answer in before] == [answer.tokens for answer in after]
    assert all(a.cost.tokens_computed > b.cost.tokens_computed for a, b in zip(before, after, strict=True))


def test_a_probe_of_a_longer_canvas_is_shortened_to_the_planned_slots():
    model = lastword.load("tiny-llada-base", device="cpu")
    cache = ProbeCache(prompt_every=0, model=model, limit=64)
    answer = lastword.generate(model, "Calculate 3 + 4.", length="fixed:32", block=16, cache=cache)
    assert len(answer.canvas) == 32
    # The first block starts from the probe; a pass over the answer starts the second block.
    assert answer.cost.tokens_computed == 16 * 16 + 32 + 15 * 16
