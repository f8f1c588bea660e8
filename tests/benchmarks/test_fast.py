"""The rule of decision 21 is applied as it was written down, and its outcome is what the records say."""

import numpy as np
import pytest

from benchmarks import fast, study
from benchmarks.arms import ARMS, FAST, FRESH, GROUPS, MODELS, Arm, Group, tagged
from lastword.errors import ExtraError
from lastword.policies.cache import DualCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.unmask.threshold import EntropyBound
from lastword.recipe import registry as names
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.tasks import load_frozen

CAREFUL, FIXED = fast.CAREFUL, fast.FIXED
BOUND = f"{CAREFUL} + entropy bound 0.1"
CACHED, KEPT = f"{BOUND} + dual cache", f"{BOUND} + dual cache, prompt kept"
PROMPTS = 1000


def counted(right, passes=10, columns=1000):
    """So many right answers of 1,000, the first ones."""
    answers = (np.arange(PROMPTS) < right).astype(np.int64)
    return fast.Counted(answers, np.full(PROMPTS, passes), PROMPTS * columns)


def found(**arms):
    """All models alike, but for arms that are given model by model."""
    names = {"fixed": FIXED, "careful": CAREFUL, "bound": BOUND, "cached": CACHED, "kept": KEPT}
    every = {"fixed": counted(880, 250), "careful": counted(900, 80), **arms}
    return {
        model: {names[name]: value[at] if isinstance(value, list) else value for name, value in every.items()}
        for at, model in enumerate(MODELS)
    }


@pytest.fixture(autouse=True)
def three(monkeypatch):
    monkeypatch.setattr(fast, "tagged", lambda tag: (CAREFUL, BOUND, CACHED))


def test_the_candidates_are_those_of_the_note():
    recipes = {ARMS[arm].recipe for arm in tagged(FAST)}
    assert len(recipes) == len(tagged(FAST)) == 27
    assert {recipe.length for recipe in recipes} == {default_length(256)}
    assert {recipe.block for recipe in recipes} == {32}
    assert Recipe(default_length(256), EntropyBound(0.3), cache=DualCache(0), block=32) in recipes
    assert GROUPS["fast"] == Group((FIXED, *tagged(FAST)), MODELS, "validation", 300)
    assert ARMS[CAREFUL].recipe in recipes


def test_a_prompt_costs_its_passes_and_its_columns():
    assert counted(1, 10, 1000).milliseconds == pytest.approx(10 * 4.2 + 1000 * 0.025)


def test_the_cheapest_that_loses_no_more_than_allowed_is_chosen():
    bound, cached = counted(897, 20, 2000), counted(896, 20, 500)
    assert fast.chosen(found(bound=bound, cached=cached)) == CACHED
    assert fast.chosen(found(bound=bound, cached=counted(894, 20, 500))) == BOUND
    assert fast.chosen(found(bound=counted(880, 20), cached=counted(880, 20))) == CAREFUL


def test_half_a_point_over_all_models_may_be_lost_and_not_more():
    cached = counted(1, 9)
    assert fast.chosen(found(bound=counted(895, 20), cached=cached)) == BOUND
    less = [counted(n, 20) for n in (895, 895, 895, 894)]
    assert fast.chosen(found(bound=less, cached=cached)) == CAREFUL


def test_one_point_may_be_lost_by_one_model_and_not_more():
    for worst, arm in ((890, BOUND), (889, CAREFUL)):
        bound = [counted(n, 20) for n in (900, 900, 900, worst)]
        assert fast.chosen(found(bound=bound, cached=counted(1, 9))) == arm


def test_no_model_may_fall_below_the_fixed_canvas():
    bound, cached = counted(898, 20), counted(1, 9)
    for right, arm in ((898, BOUND), (899, CAREFUL)):
        fixed = [counted(n, 250) for n in (880, 880, right, 880)]
        assert fast.chosen(found(fixed=fixed, bound=bound, cached=cached)) == arm


def test_a_choice_is_confirmed_or_not():
    good = found(bound=counted(896, 20), cached=counted(1))
    assert list(fast.confirmed(good, BOUND).values()) == [True, True, True]
    # 6 of 1,000 lost, and nothing won: p = 0.03 on one model
    worse = found(fixed=[counted(n) for n in (880, 880, 902, 880)], bound=counted(896, 20))
    assert list(fast.confirmed(worse, BOUND).values()) == [False, True, True]
    slow = found(bound=counted(894, 60))  # 24 of 4,000 lost, none won: p = 1e-7
    assert list(fast.confirmed(slow, BOUND).values()) == [True, False, False]
    luck = found(bound=counted(894, 20))
    for arms in luck.values():  # as many again are won elsewhere, but for some
        arms[BOUND].right[950:955] = 1
    assert fast.points(luck, BOUND, CAREFUL) == pytest.approx([-0.1] * 4)
    assert list(fast.confirmed(luck, BOUND).values()) == [True, True, True]


def test_records_hold_what_was_counted_and_the_tables_say_it(tmp_path):
    validation = found(bound=counted(897, 20, 2000), cached=counted(896, 20, 500))
    fresh = found(cached=counted(899, 20, 500))
    for split, arms in (("validation", validation), (FRESH, fresh)):
        jobs = [(study.Job(m, arm, split, 200), c) for m in MODELS for arm, c in arms[m].items()]
        results = [fast.Result(job, {"model": job.model}, counts) for job, counts in jobs]
        fast.keep(results, tmp_path)
        back = fast.read(split, tmp_path)
        assert {m: set(arms) for m, arms in back.items()} == {m: set(arms[m]) for m in MODELS}
        for job, counts in jobs:
            kept = back[job.model][job.arm]
            assert all(np.array_equal(one, other) for one, other in zip(kept, counts))
    said = fast.report(tmp_path)
    assert f"chosen: {CACHED} (stop-at-end" in said
    assert f"| {CACHED} | {'89.6 (-0.4) | ' * 4}-0.40 | 0.080 | 0.500 | 96 | chosen |" in said
    against = "-0.10, p 0.1 | 0.080 | 0.500 | 96 |"
    assert f"| {CACHED} | {'89.9 (+1.9, p 4e-06) | ' * 4}{against}" in said
    assert said.endswith(f"the default is {CACHED}")


def test_fresh_prompts_are_not_frozen_and_can_be_scored():
    (task, other) = (study.Fresh("algebra") for _ in range(2))
    samples = task.samples()
    assert len(samples) == study.FRESH_PROMPTS
    assert samples == other.samples()
    assert {sample.split for sample in samples} == {FRESH}
    assert not {s.prompt for s in samples} & {e.prompt for e in load_frozen("test", "algebra")}
    assert task.score(samples[:1], [task.examples[0].answer]) == [1.0]


@pytest.fixture
def asked(monkeypatch):
    """The splits of the jobs of a run, which asks nothing."""
    splits = []

    def each(work, jobs, *settings):
        splits.extend(job.split for job in jobs)
        return iter(())

    monkeypatch.setattr(study, "each", each)
    return splits


def test_a_run_without_the_generator_fails_before_it_asks_anything(tmp_path, monkeypatch, asked):
    def missing(family):
        raise ExtraError("not installed")

    monkeypatch.setattr(study, "fresh", missing)
    with pytest.raises(ExtraError, match="not installed"):
        fast.run(rows=5, device="cpu", workers=1, per_family=1, folder=tmp_path)
    assert asked == []


def test_a_run_asks_the_confirmation_alone_where_the_first_half_is_kept(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(study, "fresh", lambda family: ())
    arms = found(bound=counted(897, 20, 2000), cached=counted(896, 20, 500))
    results = [
        fast.Result(study.Job(m, arm, "validation", 200), {"model": m}, counts)
        for m in MODELS
        for arm, counts in arms[m].items()
    ]
    fast.keep([one for one in results if one.job.model != MODELS[0]], tmp_path)
    fast.run(rows=5, device="cpu", workers=1, per_family=1, folder=tmp_path)
    assert set(asked) == {"validation", FRESH}  # one model is missing
    asked.clear()
    fast.keep(results, tmp_path)
    fast.run(rows=5, device="cpu", workers=1, per_family=1, folder=tmp_path)
    assert asked == [FRESH] * 3 * len(MODELS)


# The outcome


@pytest.fixture
def kept(monkeypatch):
    """The records of validation prompts and of fresh ones, and what was chosen."""
    monkeypatch.setattr(fast, "tagged", tagged)
    validation, fresh = fast.read("validation"), fast.read(FRESH)
    return validation, fresh, fast.chosen(validation)


def test_fast_is_what_the_records_choose_and_the_default_what_they_confirm(kept):
    _, fresh, arm = kept
    chosen = Recipe.named("fast").with_choices(length=default_length(256), block=32)
    assert chosen == ARMS[arm].recipe
    held = all(fast.confirmed(fresh, arm).values())
    assert (names.DEFAULT_RECIPE == "fast", names.DEFAULT_RECIPE == "careful") == (held, not held)


def test_fast_takes_a_sixth_of_the_time_and_loses_half_a_point(kept):
    """These are the figures that pages and `lastword recipes` give."""
    validation, fresh, arm = kept
    for measured in (validation, fresh):
        share = fast.milliseconds(measured, arm) / fast.milliseconds(measured, CAREFUL)
        assert 1 / 7 < share < 1 / 6
        assert 0.25 < -sum(fast.points(measured, arm, CAREFUL)) / len(MODELS) < 0.75
    assert list(fast.confirmed(fresh, arm).values()) == [True, False, True]
    allowed = {candidate for candidate in tagged(FAST) if fast.allowed(validation, candidate)}
    assert {CAREFUL, arm, f"{CAREFUL} + entropy bound 0.05"} < allowed


@pytest.mark.full
def test_a_run_measures_chooses_and_confirms(tmp_path, monkeypatch):
    """On short canvases and one prompt a family, in this process."""
    monkeypatch.setattr(fast, "MODELS", MODELS[:1])
    short = {FIXED: Fixed(6), CAREFUL: Fixed(5), BOUND: Fixed(4), CACHED: Fixed(3)}
    for arm, length in short.items():
        monkeypatch.setitem(ARMS, arm, Arm(Recipe(length)))
    monkeypatch.setitem(GROUPS, "fast", Group(tuple(short), MODELS, "validation", 300))
    monkeypatch.setattr(fast, "RAW", tmp_path / "raw")
    monkeypatch.setattr(study, "RAW", tmp_path)
    monkeypatch.setattr(study, "_BENCH", None)
    fast.run(rows=5, device="cpu", workers=1, per_family=1, folder=tmp_path / "kept")
    validation, fresh = (fast.read(split, tmp_path / "kept") for split in ("validation", FRESH))
    assert fast.chosen(validation) == CACHED  # nothing is right in so few slots, and it has fewest
    assert set(fresh[MODELS[0]]) == {FIXED, CAREFUL, CACHED}
    assert validation[MODELS[0]][CACHED].passes.tolist() == [3] * 5
    assert fresh[MODELS[0]][FIXED].passes.tolist() == [6] * 5
