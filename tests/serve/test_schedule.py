"""Who goes first, by hand-made cases; and nobody starves."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.decoding.loop import decode
from lastword.decoding.planning import plan_lengths
from lastword.decoding.sampling import Sampling
from lastword.policies.unmask.ranked import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.scheduler import (
    DEFAULT_PASS_SECONDS,
    MAX_OVERTAKEN,
    MAX_RECIPES,
    PaceEstimator,
    PredictedWork,
    QueuedRequest,
    Scheduler,
    min_forward_passes,
)


def waiting(name, arrived=0.0, seconds=1.0, columns=10):
    return QueuedRequest(name, arrived, seconds, columns)


def names(waiting, schedule=Scheduler(), free=100, alone=False):
    """Everyone in the order they go, each leaving before the next is chosen."""
    left, order = list(waiting), []
    while left and (chosen := schedule.first(left, free, alone=alone)):
        left.remove(chosen)
        order.append(chosen.job)
    return order


def test_the_shortest_predicted_goes_first():
    assert names([waiting("long", seconds=3.0), waiting("short"), waiting("mid", seconds=2.0)]) == [
        "short",
        "mid",
        "long",
    ]


def test_of_equals_who_came_first_goes_first():
    assert names([waiting("b", 2.0), waiting("a", 1.0), waiting("c", 3.0)]) == ["a", "b", "c"]


@pytest.mark.parametrize(("later", "first"), [(7.9, "short"), (8.1, "long")])
def test_who_comes_too_late_does_not_overtake(later, first):
    """Eight times a difference of one second."""
    both = [waiting("long", 0.0, seconds=2.0), waiting("short", later, seconds=1.0)]
    assert names(both, Scheduler(overtaking=8.0))[0] == first


def test_without_overtaking_it_is_first_come_first_served():
    both = [waiting("short", 1.0, seconds=0.1), waiting("long", 0.0, seconds=100.0)]
    assert names(both, Scheduler(overtaking=0.0)) == ["long", "short"]


def test_who_needs_more_than_is_free_lets_others_go_before_it():
    wide = waiting("wide", columns=50)
    assert names([wide, waiting("narrow", 1.0)], free=20) == ["narrow"]
    assert wide.passed == 1


def test_who_was_passed_too_often_is_waited_for():
    wide = waiting("wide", columns=50)
    many = [waiting(at, 1.0 + at) for at in range(MAX_OVERTAKEN + 5)]
    assert names([wide, *many], free=20) == [*range(MAX_OVERTAKEN)]
    assert names([wide, *many], free=50)[0] == "wide"


def test_with_nobody_at_work_the_first_goes_whatever_it_needs():
    wide = waiting("wide", columns=500)
    assert names([wide], free=20) == []
    assert names([wide], free=20, alone=True) == ["wide"]


@given(
    jobs=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0.01, 2), st.integers(1, 60)), min_size=1, max_size=40
    ),
    overtaking=st.sampled_from([0.0, 2.0, 8.0, 32.0]),
    slots=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_nobody_starves(jobs, overtaking, slots):
    """Of a stream of short jobs without end, only so many go before any one: those that came in time."""
    schedule, longest, budget = Scheduler(overtaking=overtaking), 2.0, 60
    gap, clock, at_work, queue = 0.05, 0.0, [], []
    comes = sorted(jobs)
    left = len(comes)
    # Whoever comes later than this after another does not overtake it.
    bound = comes[-1][0] + overtaking * longest + 2 * sum(own[1] for own in comes) + 100 * longest
    nth = 0
    while left:
        assert clock < bound, "somebody waits for ever"
        while comes and comes[0][0] <= clock:
            arrived, seconds, columns = comes.pop(0)
            queue.append(QueuedRequest("one of them", arrived, seconds, columns))
        queue.append(QueuedRequest("passing", clock, 0.01, 1))  # there is always a shorter one
        at_work = [own for own in at_work if own[0] > clock]
        while len(at_work) < slots:
            free = budget - sum(own[1] for own in at_work)
            chosen = schedule.first(queue, free, alone=not at_work)
            if chosen is None:
                break
            queue.remove(chosen)
            at_work.append((clock + chosen.seconds, chosen.columns))
            left -= chosen.job == "one of them"
            if chosen.job == "passing":
                for other in queue:
                    late = chosen.arrived - other.arrived
                    fits = other.columns <= free or other.passed > 0
                    assert late <= overtaking * (other.seconds - chosen.seconds) + 1e-9 or fits
        assert all(own.passed <= MAX_OVERTAKEN for own in queue)
        clock, nth = clock + gap, nth + 1
        queue = [own for own in queue if own.job != "passing" or clock - own.arrived < 1.0]


@pytest.fixture(scope="module")
def plan_of(toy):
    def plan(recipe, most=None):
        recipe = resolve(recipe, toy, [[0, 1, 2]])
        ((made, _),) = plan_lengths(toy, recipe, [torch.tensor([0, 1, 2])], max_new_tokens=most)
        return recipe, made

    return plan


def test_a_fixed_canvas_is_all_work(plan_of):
    recipe, plan = plan_of(Recipe(length=lastword.Fixed(40)))
    assert PredictedWork.of(recipe, plan) == (40, 40.0, 40)


def test_a_probe_says_what_to_reserve_and_what_to_expect(plan_of):
    recipe, plan = plan_of(Recipe.named("careful"))
    found = PredictedWork.of(recipe, plan)
    assert found.tokens == pytest.approx(min(float(plan.lengths.mean), plan.max_horizon))
    assert found.slots == max(plan.max_horizon, int(plan.lengths.quantile(0.9)))
    assert found.fewest <= plan.max_horizon < found.slots


def test_a_cap_bounds_what_is_reserved(plan_of):
    recipe, plan = plan_of(Recipe.named("careful"), most=[5])
    found = PredictedWork.of(recipe, plan)
    assert found.slots == 5
    assert found.tokens <= 5
    assert found.fewest <= 5


FIXED = lastword.Fixed(64)
TWO = lastword.MostConfident(lastword.EqualShares(2.0))
ABOVE = lastword.AboveThreshold(0.9)


@pytest.mark.parametrize(
    ("recipe", "tokens", "least"),
    [
        (Recipe(length=FIXED), 64, 64),  # one token a pass
        (Recipe(length=FIXED, unmask=TWO), 64, 32),
        (Recipe(length=FIXED, unmask=ABOVE), 64, 1),
        (Recipe(length=FIXED, unmask=ABOVE, block=16), 64, 4),
        (Recipe(length=FIXED, unmask=ABOVE, block=16), 65, 5),
        (Recipe(length=FIXED, block=16), 60, 49),  # three blocks; the rest could be one pass
        (Recipe(length=FIXED, commit=lastword.Prophet()), 64, 1),
        (Recipe(length=FIXED, unmask=ABOVE, block=32), 5, 1),
    ],
    ids=lambda value: value.label() if isinstance(value, Recipe) else None,
)
def test_the_fewest_passes_that_tokens_can_take(recipe, tokens, least):
    assert min_forward_passes(recipe, tokens) == least


@pytest.mark.parametrize("name", ["careful", "fast", "paper", "fixed"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_takes_fewer_passes_than_its_deadline_was_held_against(toy, name, seed):
    """Of answers as long as the shortest likely one or longer."""
    recipe = Recipe.named(name).with_choices(sampling=Sampling(temperature=0.7))
    answer = lastword.generate(toy, "abc", recipe=recipe, seed=seed)
    resolved = answer.recipe
    assert answer.cost.forward_passes >= min_forward_passes(resolved, len(answer.tokens) or 1)


def test_a_pace_is_learnt_from_passes_and_answers():
    pace, recipe = PaceEstimator(), Recipe()
    assert (
        pace.seconds(recipe, 100.0) == 100 * DEFAULT_PASS_SECONDS
    )  # nothing is known yet: short jobs are short
    assert pace.shortest_pass == 0.0  # and nothing is refused
    for _ in range(200):
        pace.passed(0.02)
        pace.learn(recipe, 10.0, 20)
    assert pace.seconds(recipe, 100.0) == pytest.approx(4.0, rel=0.01)
    for _ in range(200):
        pace.passed(0.04)
    assert pace.seconds(recipe, 100.0) == pytest.approx(8.0, rel=0.01)
    assert pace.seconds(Recipe.named("fast"), 100.0) == pytest.approx(4.0, rel=0.01)  # one a token


def test_recipes_that_nobody_asks_for_any_more_are_forgotten():
    pace = PaceEstimator()
    for slots in range(1, 2 * MAX_RECIPES):
        pace.learn(Recipe(length=lastword.Fixed(slots)), 10.0, 20)
        pace.learn(Recipe(), 10.0, 30)
    assert len(pace.passes_a_token) == MAX_RECIPES
    assert pace.passes_a_token[Recipe()] == pytest.approx(3.0)


def test_the_shortest_pass_is_forgotten_slowly():
    pace = PaceEstimator()
    pace.passed(0.01)
    pace.passed(0.05)
    assert pace.shortest_pass == pytest.approx(0.0102)
    for _ in range(math.ceil(math.log(5, 1.02))):
        pace.passed(0.05)
    assert pace.shortest_pass == 0.05


def test_a_pace_keeps_the_recipes_that_are_asked_for_and_no_more():
    """Anybody can ask for another temperature every time."""
    pace, often = PaceEstimator(), Recipe()
    for at in range(1_000):
        pace.learn(often, 10.0, 20)
        pace.learn(Recipe(sampling=Sampling(temperature=0.1 + at)), 10.0, 5)
    assert len(pace.passes_a_token) <= 256
    assert pace.passes_a_token[often] == pytest.approx(2.0)


@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("pace", [0.01, 0.3, 1.0, 2.5])
def test_no_answer_takes_fewer_passes_than_its_deadline_is_held_against(toy, pace, block):
    """A schedule slower than a token a pass says more passes than it takes."""
    recipe = Recipe(lastword.Fixed(9), MostConfident(EqualShares(pace)), block=block)
    (*_, last) = decode(toy, [[0, 1, 2]], recipe)
    assert min_forward_passes(last.recipe, 9) <= last.finished[0].cost.forward_passes
