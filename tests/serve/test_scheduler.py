"""The order of waiting requests, estimates of their work, and that no request starves."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings, strategies as st

import lastword
from lastword.decoding.forward import TokenCost
from lastword.decoding.loop import decode
from lastword.decoding.running_batch import plan_lengths
from lastword.decoding.sampling import Sampling
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.scheduler import (
    DEFAULT_PASS_SECONDS,
    MAX_OVERTAKEN,
    MAX_RECIPES,
    PredictedWork,
    QueuedRequest,
    Scheduler,
    WorkEstimator,
    min_forward_passes,
)


@dataclass(eq=False)
class Named(QueuedRequest):
    name: str


def waiting(name, arrived=0.0, seconds=1.0, tokens=10, timeout=math.inf):
    return Named(arrived, seconds, tokens, name, deadline=arrived + timeout)


RUNNING = waiting("running", seconds=0.0)


def order(waiting, scheduler=Scheduler(), free=100, running=(RUNNING,), **state):
    """Return the names in the order in which they start, each removed before the next is chosen."""
    left, names = list(waiting), []
    while left and (chosen := scheduler.next_request(left, running, free, **state)):
        left.remove(chosen)
        names.append(chosen.name)
    return names


@pytest.mark.parametrize(
    ("requests", "overtaking", "names"),
    [
        ([waiting("c", seconds=3.0), waiting("a"), waiting("b", seconds=2.0)], 8.0, "abc"),
        ([waiting("b", 2.0), waiting("a", 1.0), waiting("c", 3.0)], 8.0, "abc"),  # equal: first come
        ([waiting("b", 0.0, seconds=2.0), waiting("a", 7.9, seconds=1.0)], 8.0, "ab"),
        ([waiting("a", 0.0, seconds=2.0), waiting("b", 8.1, seconds=1.0)], 8.0, "ab"),  # too late to overtake
        ([waiting("b", 1.0, seconds=0.1), waiting("a", 0.0, seconds=100.0)], 0.0, "ab"),
    ],
)
def test_shortest_predicted_first_with_ageing(requests, overtaking, names):
    assert order(requests, Scheduler(overtaking=overtaking)) == [*names]


def test_a_request_that_does_not_fit_is_overtaken_a_limited_number_of_times():
    wide = waiting("wide", tokens=50)
    assert order([wide, waiting("narrow", 1.0)], free=20) == ["narrow"]
    assert wide.overtaken == 1
    wide = waiting("wide", tokens=50)
    others = [waiting(at, 1.0 + at) for at in range(MAX_OVERTAKEN + 5)]
    assert order([wide, *others], free=20) == [*range(MAX_OVERTAKEN)]
    assert order([wide, *others], free=50)[0] == "wide"


def test_the_first_request_starts_in_an_empty_batch_whatever_it_needs():
    wide = waiting("wide", tokens=500)
    assert order([wide], free=20) == []
    assert order([wide], free=20, running=()) == ["wide"]


@pytest.mark.parametrize(
    ("timeout", "arrival", "names"),
    [
        (600.0, 109.0, "sl"),  # a quarter of the timeout, less 8 times 5 seconds
        (600.0, 111.0, "ls"),
        (1e4, 700.0, "sl"),
        (1e4, 800.0, "ls"),  # arrived 8 times the difference later
    ],
)
def test_ageing_is_bounded_by_a_share_of_the_timeout(timeout, arrival, names):
    requests = [waiting("l", seconds=100.0, timeout=timeout), waiting("s", arrival, 5.0, timeout=timeout)]
    assert order(requests, now=0.0) == [*names]


@pytest.mark.parametrize(
    ("now", "running", "rows", "names"),
    [
        (0.0, 0.0, 1, "sl"),
        (38.0, 0.0, 1, "sl"),  # twice the 10 and 1 seconds of both still fit into 60 seconds
        (38.1, 0.0, 1, "ls"),
        (20.0, 8.0, 1, "sl"),
        (20.0, 11.0, 1, "ls"),  # the running request ends before
        (20.0, 20.0, 2, "ls"),
        (20.0, 20.0, 4, "sl"),  # the other rows are free earlier
        (39.0, 0.0, 2, "sl"),  # two rows: the short one delays the long one by half its time
        (70.0, 0.0, 1, "sl"),  # past the deadline: nothing waits for it
    ],
)
def test_a_request_that_needs_the_rest_of_its_time_is_not_overtaken(now, running, rows, names):
    requests = [waiting("l", seconds=10.0, timeout=60.0), waiting("s", 1.0, 1.0, timeout=60.0)]
    scheduler = Scheduler(max_delay=1.0)
    assert order(requests, scheduler, running=[waiting("r", seconds=running)], rows=rows, now=now) == [*names]


def test_deadlines_are_kept_for_requests_in_the_middle_of_the_queue():
    """`b` would be answered in time after `a`, but not after `a` and `c`."""
    requests = [waiting("a", 0.0, 9.0), waiting("b", 0.1, 8.0, timeout=35.0), waiting("c", 0.2, 1.0)]
    assert order(requests) == ["b", "c", "a"]
    assert order(requests, Scheduler(headroom=0.0)) == ["c", "b", "a"]


def finished(jobs, scheduler):
    """Return when each job ends with one row; the predictions are exact."""
    arriving, queue, ends, clock = sorted(jobs), [], {}, 0.0
    while arriving or queue:
        if not queue:
            clock = max(clock, arriving[0][0])
        while arriving and arriving[0][0] <= clock:
            at, seconds, timeout, name = arriving.pop(0)
            queue.append(waiting(name, at, seconds, timeout=timeout))
        chosen = scheduler.next_request(queue, (), 100, now=clock)
        queue.remove(chosen)
        clock += chosen.predicted_seconds
        ends[chosen.name] = clock
    return ends


@given(
    jobs=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30), st.integers(0, 200)), min_size=2, max_size=25),
    headroom=st.sampled_from([1.0, 2.0]),
    max_delay=st.sampled_from([0.25, math.inf]),
)
@settings(max_examples=200, deadline=None)
def test_no_request_expires_that_is_answered_in_order_of_arrival(jobs, headroom, max_delay):
    """Every deadline is met in order of arrival, by a margin that differs from request to request."""
    without = [(float(at), float(seconds), math.inf, name) for name, (at, seconds, _) in enumerate(jobs)]
    in_order, margins = finished(without, Scheduler(overtaking=0.0)), [margin for *_, margin in jobs]
    jobs = [(at, seconds, in_order[name] - at + margins[name], name) for at, seconds, _, name in without]
    ends = finished(jobs, Scheduler(headroom=headroom, max_delay=max_delay))
    for at, _, timeout, name in jobs:
        assert ends[name] <= at + timeout + 1e-6


@given(
    jobs=st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 2), st.integers(1, 60)), min_size=1, max_size=40),
    overtaking=st.sampled_from([0.0, 2.0, 8.0, 32.0]),
    rows=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_no_request_starves(jobs, overtaking, rows):
    """In an endless stream of short requests, only those that arrive early enough overtake."""
    scheduler, longest, budget = Scheduler(overtaking=overtaking), 2.0, 60
    gap, clock, running, queue = 0.05, 0.0, [], []
    arriving = sorted(jobs)
    left = len(arriving)
    bound = arriving[-1][0] + overtaking * longest + 2 * sum(job[1] for job in arriving) + 100 * longest
    while left:
        assert clock < bound, "a request waits for ever"
        while arriving and arriving[0][0] <= clock:
            queue.append(waiting("counted", *arriving.pop(0)))
        queue.append(waiting("short", clock, 0.01, 1))  # there is always a shorter one
        running = [row for row in running if row[0] > clock]
        while len(running) < rows:
            free = budget - sum(row[1] for row in running)
            chosen = scheduler.next_request(queue, [RUNNING] * len(running), free)
            if chosen is None:
                break
            queue.remove(chosen)
            running.append((clock + chosen.predicted_seconds, chosen.reserved_tokens))
            left -= chosen.name == "counted"
            if chosen.name == "short":
                for other in queue:
                    late = chosen.arrived - other.arrived
                    fits = other.reserved_tokens <= free or other.overtaken > 0
                    difference = other.predicted_seconds - chosen.predicted_seconds
                    assert late <= overtaking * difference + 1e-9 or fits
        assert all(request.overtaken <= MAX_OVERTAKEN for request in queue)
        clock += gap
        queue = [request for request in queue if request.name != "short" or clock - request.arrived < 1.0]


@pytest.fixture(scope="module")
def work_of(toy):
    def work(recipe, cap=None):
        recipe = resolve(recipe, toy, [[0, 1, 2]])
        caps = None if cap is None else [cap]
        ((plan, _),) = plan_lengths(toy, recipe, [torch.tensor([0, 1, 2])], max_new_tokens=caps)
        return PredictedWork.of(recipe, plan), plan

    return work


def test_predicted_work(work_of):
    assert work_of(Recipe(length=lastword.Fixed(40)))[0] == (40, 40.0, 40)
    work, plan = work_of(Recipe.named("careful"))
    assert work.tokens == pytest.approx(min(float(plan.lengths.mean), plan.max_horizon))
    assert work.slots == max(plan.max_horizon, int(plan.lengths.quantile(0.9)))
    assert work.min_passes <= plan.max_horizon < work.slots
    work, _ = work_of(Recipe.named("careful"), cap=5)
    assert work.slots == 5
    assert max(work.tokens, work.min_passes) <= 5


FIXED = lastword.Fixed(64)
TWO = lastword.MostConfident(lastword.EqualShares(2.0))
ABOVE = lastword.AboveThreshold(0.9)


@pytest.mark.parametrize(
    ("recipe", "tokens", "passes"),
    [
        (Recipe(length=FIXED), 64, 64),  # one token per pass
        (Recipe(length=FIXED, unmask=TWO), 64, 32),
        (Recipe(length=FIXED, unmask=ABOVE), 64, 1),
        (Recipe(length=FIXED, unmask=ABOVE, block=16), 64, 4),
        (Recipe(length=FIXED, unmask=ABOVE, block=16), 65, 5),
        (Recipe(length=FIXED, block=16), 60, 49),  # three blocks; the rest could take one pass
        (Recipe(length=FIXED, commit=lastword.Prophet()), 64, 1),
        (Recipe(length=FIXED, unmask=ABOVE, block=32), 5, 1),
    ],
    ids=lambda value: value.label() if isinstance(value, Recipe) else None,
)
def test_the_fewest_forward_passes(recipe, tokens, passes):
    assert min_forward_passes(recipe, tokens) == passes


@pytest.mark.parametrize("name", ["careful", "fast", "paper", "fixed"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_takes_fewer_passes_than_the_minimum(toy, name, seed):
    recipe = Recipe.named(name).with_choices(sampling=Sampling(temperature=0.7))
    answer = lastword.generate(toy, "abc", recipe=recipe, seed=seed)
    assert answer.cost.forward_passes >= min_forward_passes(answer.recipe, len(answer.tokens) or 1)


@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("pace", [0.01, 0.3, 1.0, 2.5])
def test_a_slow_schedule_takes_no_fewer_passes_than_the_minimum(toy, pace, block):
    recipe = Recipe(lastword.Fixed(9), MostConfident(EqualShares(pace)), block=block)
    (*_, last) = decode(toy, [[0, 1, 2]], recipe)
    assert min_forward_passes(last.recipe, 9) <= last.finished[0].cost.forward_passes


TEN = PredictedWork(10, 10.0, 1)


def test_estimates_follow_passes_and_answers():
    estimator, recipe = WorkEstimator(), Recipe()
    assert estimator.seconds(recipe, 100.0) == 100 * DEFAULT_PASS_SECONDS
    assert estimator.shortest_pass == 0.0  # no deadline is refused before the first pass
    for _ in range(200):
        estimator.observe_pass(recipe, 0.01, 0.02)
        estimator.observe_answer(recipe, TEN, 10, TokenCost(20, 300, 0))
    assert estimator.seconds(recipe, 100.0) == pytest.approx(4.0, rel=0.01)
    assert estimator.remaining_tokens(recipe, 10.0, 20, 100) == pytest.approx(200.0)
    for _ in range(200):
        estimator.observe_pass(recipe, 0.01, 0.04)  # the session takes turns with others
    assert estimator.seconds(recipe, 100.0) == pytest.approx(8.0, rel=0.01)
    assert estimator.seconds(recipe, 100.0, 150) == pytest.approx(2.0, rel=0.01)
    fast = Recipe.named("fast")
    assert estimator.seconds(fast, 100.0) == pytest.approx(4.0, rel=0.01)  # one pass per token, of all recipes
    estimator.observe_pass(fast, 0.01, 0.1)
    assert estimator.seconds(fast, 100.0) == pytest.approx(10.0, rel=0.01)
    assert estimator.seconds(recipe, 100.0) == pytest.approx(8.0, rel=0.01)


def test_the_shortest_pass_is_forgotten_slowly():
    estimator, recipe = WorkEstimator(), Recipe()
    estimator.observe_pass(recipe, 0.01, 0.01)
    estimator.observe_pass(recipe, 0.05, 0.05)
    assert estimator.shortest_pass == pytest.approx(0.0102)
    for _ in range(math.ceil(math.log(5, 1.02))):
        estimator.observe_pass(recipe, 0.05, 0.05)
    assert estimator.shortest_pass == 0.05


def test_the_number_of_recipes_with_an_estimate_is_bounded():
    """Any client can send a new temperature in each request."""
    estimator, frequent = WorkEstimator(), Recipe()
    for at in range(2 * MAX_RECIPES):
        estimator.observe_answer(frequent, TEN, 10, TokenCost(20, 300, 0))
        other = Recipe(sampling=Sampling(temperature=0.1 + at))
        estimator.observe_answer(other, TEN, 10, TokenCost(5, 300, 0))
    assert len(estimator.passes_per_token) == MAX_RECIPES
    assert estimator.passes_per_token[frequent] == pytest.approx(2.0)
