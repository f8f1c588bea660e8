"""Tests of the fast recipe: the rule of decision 21, its tables, and the recipe that the kept records choose."""

import numpy as np
import pytest

from benchmarks import fast, study
from benchmarks.arms import ARMS, FAST, FRESH, GROUPS, MODELS, Arm, Group, tagged
from benchmarks.json_lines import SUFFIX, write_lines
from lastword.errors import ExtraError
from lastword.policies.cache import DualCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.unmask.threshold import EntropyBound
from lastword.recipe import registry
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.tasks import load_frozen

CAREFUL, FIXED = fast.CAREFUL, fast.FIXED
BOUND = f"{CAREFUL} + entropy bound 0.1"
CACHED = f"{BOUND} + dual cache"
PROMPTS = 1000


def arm_result(num_correct, passes=10, tokens=1000):
    """Return a result on 1,000 prompts, of which the first `num_correct` have correct answers."""
    correct = (np.arange(PROMPTS) < num_correct).astype(np.int64)
    return fast.ArmResult(correct, np.full(PROMPTS, passes), PROMPTS * tokens)


def results_of(**arms):
    """Return results that are equal for all models; an arm may have a list with a result per model."""
    names = {"fixed": FIXED, "careful": CAREFUL, "bound": BOUND, "cached": CACHED}
    every = {"fixed": arm_result(880, 250), "careful": arm_result(900, 80), **arms}
    return {
        model: {names[name]: value[at] if isinstance(value, list) else value for name, value in every.items()}
        for at, model in enumerate(MODELS)
    }


def job_results(results, split):
    """Return the results of all jobs of a split."""
    return [
        fast.JobResult(study.Job(model, arm, split, 200), {"model": model}, result)
        for model in MODELS
        for arm, result in results[model].items()
    ]


@pytest.fixture(autouse=True)
def three_candidates(monkeypatch):
    monkeypatch.setattr(fast, "tagged", lambda tag: (CAREFUL, BOUND, CACHED))


def test_the_candidates_are_those_of_decision_21():
    recipes = {ARMS[arm].recipe for arm in tagged(FAST)}
    assert len(recipes) == len(tagged(FAST)) == 27
    assert {recipe.length for recipe in recipes} == {default_length(256)}
    assert {recipe.block for recipe in recipes} == {32}
    assert Recipe(default_length(256), EntropyBound(0.3), cache=DualCache(0), block=32) in recipes
    assert GROUPS["fast"] == Group((FIXED, *tagged(FAST)), MODELS, "validation", 300)
    assert ARMS[CAREFUL].recipe in recipes


def test_milliseconds_are_estimated_from_passes_and_tokens():
    assert arm_result(1, 10, 1000).milliseconds == pytest.approx(10 * 4.2 + 1000 * 0.025)


def test_the_cheapest_allowed_arm_is_chosen():
    bound, cached = arm_result(897, 20, 2000), arm_result(896, 20, 500)
    assert fast.chosen(results_of(bound=bound, cached=cached)) == CACHED
    assert fast.chosen(results_of(bound=bound, cached=arm_result(894, 20, 500))) == BOUND
    assert fast.chosen(results_of(bound=arm_result(880, 20), cached=arm_result(880, 20))) == CAREFUL


def test_a_loss_of_half_a_point_over_all_models_is_allowed():
    cached = arm_result(1, 9)
    assert fast.chosen(results_of(bound=arm_result(895, 20), cached=cached)) == BOUND
    less = [arm_result(n, 20) for n in (895, 895, 895, 894)]
    assert fast.chosen(results_of(bound=less, cached=cached)) == CAREFUL


def test_a_loss_of_one_point_on_one_model_is_allowed():
    for worst, arm in ((890, BOUND), (889, CAREFUL)):
        bound = [arm_result(n, 20) for n in (900, 900, 900, worst)]
        assert fast.chosen(results_of(bound=bound, cached=arm_result(1, 9))) == arm


def test_no_model_may_be_less_accurate_than_on_the_fixed_canvas():
    bound, cached = arm_result(898, 20), arm_result(1, 9)
    for num_correct, arm in ((898, BOUND), (899, CAREFUL)):
        fixed = [arm_result(n, 250) for n in (880, 880, num_correct, 880)]
        assert fast.chosen(results_of(fixed=fixed, bound=bound, cached=cached)) == arm


def test_each_condition_of_the_confirmation_can_fail():
    good = results_of(bound=arm_result(896, 20), cached=arm_result(1))
    assert list(fast.confirmed(good, BOUND).values()) == [True, True, True]
    # 6 of 1,000 lost, and nothing won: p = 0.03 on one model
    worse = results_of(fixed=[arm_result(n) for n in (880, 880, 902, 880)], bound=arm_result(896, 20))
    assert list(fast.confirmed(worse, BOUND).values()) == [False, True, True]
    slow = results_of(bound=arm_result(894, 60))  # 24 of 4,000 lost, none won: p = 1e-7
    assert list(fast.confirmed(slow, BOUND).values()) == [True, False, False]


def test_a_loss_that_is_not_significant_is_confirmed():
    results = results_of(bound=arm_result(894, 20))
    for arms in results.values():
        arms[BOUND].correct[950:955] = 1  # 6 of 1,000 are lost and 5 won
    assert fast.differences(results, BOUND, CAREFUL) == pytest.approx([-0.1] * 4)
    assert list(fast.confirmed(results, BOUND).values()) == [True, True, True]


def test_written_records_are_read_and_reported(tmp_path):
    validation = results_of(bound=arm_result(897, 20, 2000), cached=arm_result(896, 20, 500))
    fresh = results_of(cached=arm_result(899, 20, 500))
    for split, results in (("validation", validation), (FRESH, fresh)):
        fast.keep(job_results(results, split), tmp_path)
        kept = fast.read(split, tmp_path)
        assert {model: set(arms) for model, arms in kept.items()} == {model: set(results[model]) for model in MODELS}
        for model, arms in results.items():
            for arm, result in arms.items():
                assert all(np.array_equal(*values) for values in zip(kept[model][arm], result, strict=True))
    report = fast.report(tmp_path)
    assert f"chosen: {CACHED} (stop-at-end" in report
    assert f"| {CACHED} | {'89.6 (-0.4) | ' * 4}-0.40 | 0.080 | 0.500 | 96 | chosen |" in report
    assert f"| {BOUND} | {'89.7 (-0.3) | ' * 4}-0.30 | 0.080 | 2.000 | 134 | allowed |" in report
    assert f"| {FIXED} | {'88.0 (-2.0) | ' * 4}-2.00 | 1.000 | 1.000 | 1075 | not allowed |" in report
    careful = "-0.10, p 0.1 | 0.080 | 0.500 | 96 |"
    assert f"| entropy bound 0.1 + dual cache | {'89.9 (+1.9, p 4e-06) | ' * 4}{careful}" in report
    assert report.endswith(f"the default is {CACHED}")


def test_records_of_earlier_versions_are_read(tmp_path):
    """The names of fields and of some arms have changed."""
    line = {"arm": "fixed 256", "recipe": {}, "columns": 70, "right": "101", "passes": [1, 2, 3]}
    arms = [line, line | {"arm": f"{CAREFUL} + threshold + dual cache, prompt kept"}]
    write_lines(tmp_path / f"{MODELS[0]}.validation{SUFFIX}", {"model": MODELS[0]}, arms)
    kept = fast.read("validation", tmp_path)[MODELS[0]]
    assert set(kept) == {"fixed 256", f"{CAREFUL} + threshold 0.9 + dual cache, prompt computed once"}
    for result in kept.values():
        assert (result.correct.tolist(), result.forward_passes.tolist()) == ([1, 0, 1], [1, 2, 3])
        assert result.tokens_computed == 70


def test_the_page_shows_the_fixed_canvas_and_candidates_worth_their_time(monkeypatch):
    """A slower candidate is shown if the rule allows it or if it is more accurate than all faster ones."""
    monkeypatch.setattr(fast, "tagged", lambda tag: (CAREFUL, BOUND, CACHED, "allowed", "slow", "slower"))
    arms = {
        "allowed": arm_result(896, 25, 3000),  # less accurate than a faster one
        "slow": arm_result(850, 30, 3000),
        "slower": arm_result(894, 40, 3000),
    }
    results = results_of(bound=arm_result(897, 20, 2000), cached=arm_result(889, 20, 500))
    monkeypatch.setattr(fast, "read", lambda split: {model: of_model | arms for model, of_model in results.items()})
    assert fast.page_candidates().splitlines()[2:] == [
        "| entropy bound 0.1 + dual cache | -1.10 | -1.1 | 0.080 | 0.500 | 96 | not allowed |",
        "| entropy bound 0.1 | -0.30 | -0.3 | 0.080 | 2.000 | 134 | chosen |",
        "| allowed | -0.40 | -0.4 | 0.100 | 3.000 | 180 | allowed |",
        "| one token per forward pass (`careful`) | +0.00 | +0.0 | 0.320 | 1.000 | 361 | allowed |",
        "| fixed 256 | -2.00 | -2.0 | 1.000 | 1.000 | 1075 | not allowed |",
    ]


def test_fresh_prompts_are_not_frozen_and_can_be_scored():
    (task, other) = (study.Fresh("algebra") for _ in range(2))
    samples = task.samples()
    assert len(samples) == study.FRESH_PROMPTS
    assert samples == other.samples()
    assert {sample.split for sample in samples} == {FRESH}
    assert not {s.prompt for s in samples} & {e.prompt for e in load_frozen("test", "algebra")}
    assert task.score(samples[:1], [task.examples[0].answer]) == [1.0]


@pytest.fixture
def splits(monkeypatch):
    """The splits of the jobs of a run, which are not measured."""
    splits = []

    def run_jobs(measure_job, jobs, *settings):
        splits.extend(job.split for job in jobs)
        return iter(())

    monkeypatch.setattr(study, "run_jobs", run_jobs)
    return splits


def run(folder):
    fast.run(batch_size=5, device="cpu", workers=1, per_family=1, folder=folder)


def test_a_run_without_the_generator_fails_before_any_job(tmp_path, monkeypatch, splits):
    def not_installed(family):
        raise ExtraError("not installed")

    monkeypatch.setattr(study, "fresh", not_installed)
    with pytest.raises(ExtraError, match="not installed"):
        run(tmp_path)
    assert splits == []


def test_a_run_with_records_of_validation_prompts_measures_the_confirmation_only(tmp_path, monkeypatch, splits):
    monkeypatch.setattr(study, "fresh", lambda family: ())
    results = job_results(
        results_of(bound=arm_result(897, 20, 2000), cached=arm_result(896, 20, 500)), "validation"
    )  # fmt: skip
    fast.keep([result for result in results if result.job.model != MODELS[0]], tmp_path)
    run(tmp_path)
    assert set(splits) == {"validation", FRESH}  # one model is missing
    splits.clear()
    fast.keep(results, tmp_path)
    run(tmp_path)
    assert splits == [FRESH] * 3 * len(MODELS)


# The result of the kept records


@pytest.fixture
def kept(monkeypatch):
    """The records of validation prompts and of fresh ones, and the arm that the former choose."""
    monkeypatch.setattr(fast, "tagged", tagged)
    validation, fresh = fast.read("validation"), fast.read(FRESH)
    return validation, fresh, fast.chosen(validation)


def test_fast_is_the_chosen_recipe_and_the_default_only_if_confirmed(kept):
    _, fresh, arm = kept
    recipe = Recipe.named("fast").with_choices(length=default_length(256), block=32)
    assert recipe == ARMS[arm].recipe
    is_confirmed = all(fast.confirmed(fresh, arm).values())
    assert ("fast" if is_confirmed else "careful") == registry.DEFAULT_RECIPE


def test_fast_takes_a_sixth_of_the_time_and_loses_half_a_point(kept):
    """Pages and `lastword recipes` state these figures."""
    validation, fresh, arm = kept
    for results in (validation, fresh):
        share = fast.milliseconds(results, arm) / fast.milliseconds(results, CAREFUL)
        assert 1 / 7 < share < 1 / 6
        assert 0.25 < -sum(fast.differences(results, arm, CAREFUL)) / len(MODELS) < 0.75
    assert list(fast.confirmed(fresh, arm).values()) == [True, False, True]
    allowed = {candidate for candidate in tagged(FAST) if fast.allowed(validation, candidate)}
    assert {CAREFUL, arm, f"{CAREFUL} + entropy bound 0.05"} < allowed


@pytest.mark.full
def test_a_run_measures_chooses_and_confirms(tmp_path, monkeypatch):
    """On short canvases and one prompt per family, in this process."""
    monkeypatch.setattr(fast, "MODELS", MODELS[:1])
    short = {FIXED: Fixed(6), CAREFUL: Fixed(5), BOUND: Fixed(4), CACHED: Fixed(3)}
    for arm, length in short.items():
        monkeypatch.setitem(ARMS, arm, Arm(Recipe(length)))
    monkeypatch.setitem(GROUPS, "fast", Group(tuple(short), MODELS, "validation", 300))
    monkeypatch.setattr(fast, "RAW", tmp_path / "raw")
    monkeypatch.setattr(study, "RAW", tmp_path)
    monkeypatch.setattr(study, "_BENCH", None)
    run(tmp_path / "kept")
    validation, fresh = (fast.read(split, tmp_path / "kept") for split in ("validation", FRESH))
    assert fast.chosen(validation) == CACHED  # no answer is correct in so few slots, and it has the fewest
    assert set(fresh[MODELS[0]]) == {FIXED, CAREFUL, CACHED}
    assert validation[MODELS[0]][CACHED].forward_passes.tolist() == [3] * 5
    assert fresh[MODELS[0]][FIXED].forward_passes.tolist() == [6] * 5
