"""The same prompts answered in two ways: tables count what records say, and runs write such records."""

import pytest

import lastword
from benchmarks.float8 import FLOAT8
from benchmarks.opening import OPENING, ProbeOpens
from benchmarks.paired import Compared, Record
from lastword.policies.cache import DualCache
from lastword.recipe.recipe import Recipe


def test_the_table_counts_what_was_won_and_lost():
    record = Record(
        recipe="fast",
        split="validation",
        per_family=1,
        surroundings={"hardware": "none"},
        models=[
            Compared(model="a", before="11110", after="11001", same="11000"),
            Compared(model="b", before="11111", after="11111", same="11111"),
        ],
    )
    head, _, first, second, both = FLOAT8.table(record).splitlines()
    assert "| as stored | fp8 |" in head
    assert first == "| a | 5 | 80.0 | 60.0 | -20.00 | 1, 2 | 1 | 40.0% |"
    assert second == "| b | 5 | 100.0 | 100.0 | +0.00 | 0, 0 | 1 | 100.0% |"
    assert both == "| all | 10 | 90.0 | 80.0 | -10.00 | 1, 2 | 1 | 70.0% |"


def test_answers_are_compared_in_order():
    made = Compared.of("a", [(True, "x"), (False, "y")], [(True, "z"), (True, "y")])
    assert (made.before, made.after, made.same) == ("10", "11", "01")
    with pytest.raises(ValueError, match="shorter"):
        Compared.of("a", [(True, "x")], [])


@pytest.mark.full
@pytest.mark.parametrize("comparison", [FLOAT8, OPENING], ids=["float8", "opening"])
def test_a_run_asks_both_ways_the_same(tmp_path, monkeypatch, capsys, comparison):
    out = tmp_path / "record.json"
    words = ["", "run", "--models", "tiny-llada-base", "--per-family", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    comparison.main("About.")
    (only,) = comparison.read(out).models
    assert len(only.before) == len(only.after) == len(only.same) == 5
    assert "| tiny-llada-base | 5 |" in capsys.readouterr().out


def test_a_probe_of_the_planned_canvas_opens_it_as_a_pass_of_its_own_does():
    """Where probe and plan have the same slots, the keys are those of the opening, and so are the tokens."""
    model = lastword.load("tiny-llada-base", device="cpu")
    asked = ["Calculate 3 + 4.", "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"]
    plain = Recipe(length=lastword.Fixed(48), block=16, cache=DualCache(prompt_every=0))
    probed = ProbeOpens(prompt_every=0, model=model, limit=48)
    before, after = (lastword.generate(model, asked, recipe=plain, cache=cache) for cache in (plain.cache, probed))
    assert [one.tokens for one in before] == [one.tokens for one in after]
    assert all(one.cost.tokens_computed > other.cost.tokens_computed for one, other in zip(before, after))


def test_a_probe_of_a_longer_canvas_leaves_what_was_planned_of_it():
    model = lastword.load("tiny-llada-base", device="cpu")
    cache = ProbeOpens(prompt_every=0, model=model, limit=64)
    made = lastword.generate(model, "Calculate 3 + 4.", length="fixed:32", block=16, cache=cache)
    assert len(made.canvas) == 32
    # The first block without an opening, the second with one of the answer alone.
    assert made.cost.tokens_computed == 16 * 16 + 32 + 15 * 16
