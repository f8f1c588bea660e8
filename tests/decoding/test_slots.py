"""Slots: fewer than prompts, and every row is what it is alone."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import lastword
from lastword.canvas.canvas import tree_tensors
from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, LengthTraits, Plan
from tests.decoding.decoded import PROMPTS, alone, answers, static_shapes, steps
from tests.laws.axes import LENGTHS, RESIZING, SLOW_FAST, recipe_of, recipes, tiny

GROWS = lastword.StopAtEnd(lastword.GrowWhenFull(lastword.Survival(limit=12), increment=3, limit=20))
DRAWN = lastword.Sampling(temperature=0.8)
RECIPES = [
    {"length": GROWS},
    {"length": GROWS, "cache": lastword.PrefixCache(2)},
    {"length": GROWS, "cache": lastword.DualCache(0), "unmask": lastword.EntropyBound(1.0)},
    {"length": GROWS, "cache": lastword.FeatureCache(3, 2, 0.3)},
    {"length": GROWS, "cache": lastword.DualCache(), "sampling": DRAWN},
    {"length": lastword.Fixed(7), "cache": lastword.DualCache(), "unmask": lastword.AtRandom()},
    {"length": GROWS, "unmask": lastword.CoinFlip(), "sampling": replace(DRAWN, score="draw")},
    {"length": lastword.Survival(limit=12), "unmask": SLOW_FAST[0]},
    {"length": lastword.Survival(limit=12), "commit": lastword.StableMargin(start_threshold=2.5, end_threshold=0.2)},
    {"length": lastword.Reread(lastword.Survival(16), increment=5)},
    {
        "length": lastword.Daedal(
            initial=4, limit=12, expansion_factor=3, eos_window=2, eos_threshold=0.0, low_threshold=0.9
        )
    },
    {"length": lastword.Budget(GROWS, max_passes=9), "cache": lastword.DualCache()},
]


@pytest.mark.parametrize("choices", RECIPES, ids=lambda choices: recipe_of(**choices).label())
def test_rows_through_fewer_slots_are_what_they_are_alone(choices):
    model = tiny(("llada-tiny-eos", "dream-tiny")[RECIPES.index(choices) % 2])
    recipe = recipe_of(block=4, **choices)
    solo = alone(model, recipe, PROMPTS[:3])
    assert answers(model, recipe, PROMPTS[:3], max_batch_size=2) == solo
    with static_shapes():
        assert answers(model, recipe, PROMPTS[:3], max_batch_size=2) == solo


@pytest.mark.full
@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["llada-tiny-eos", "dream-tiny"]), recipes([*LENGTHS, *RESIZING]), st.integers(1, 2), st.booleans()
)
def test_any_recipe_goes_through_any_slots(name, recipe, slots, fixed):
    prompts = PROMPTS[:3]
    together = answers(tiny(name), recipe, prompts)
    with static_shapes(fixed):
        assert answers(tiny(name), recipe, prompts, max_batch_size=slots) == together


@dataclass(frozen=True)
class ByPrompt(LengthPolicy):
    """A slot more than the prompt has tokens, as what a pass over one slot costs tells."""

    traits = LengthTraits(max_slots=10)

    def plan(self, probe):
        return Plan(probe.max_cost(torch.ones(probe.num_rows, dtype=torch.long)).tokens_computed)


def crowd(count):
    return [[5 + index] * (1 + index * 7 % 9) for index in range(count)]


# Two slots fall free at once while one prompt is planned and another waits.
TOGETHER = [[9] * tokens for tokens in (1, 2, 5, 7, 2, 2, 3)]


@pytest.mark.parametrize(
    ("prompts", "slots", "fixed"), [(TOGETHER, 3, False), (crowd(24), 4, False), (crowd(24), 4, True)]
)
def test_slots_are_busy_until_no_prompt_waits(prompts, slots, fixed):
    recipe = lastword.Recipe(length=ByPrompt(), cache=lastword.DualCache(), block=10)
    begun, finished = set(), []
    with static_shapes(fixed):
        for step in steps(tiny("llada-tiny-eos"), recipe, prompts, max_batch_size=slots):
            assert len(step.request_ids) == slots == len(step.canvas.horizon) == len(step.plan.horizon)
            at_work = [prompt for prompt in step.request_ids if prompt is not None]
            assert not {*at_work} & {*finished}
            begun |= {*at_work}
            if len(begun) < len(prompts):
                assert None not in step.request_ids
            finished += [done.request_id for done in step.finished]
            assert {*(done.request_id for done in step.finished)} <= {*at_work}
    assert sorted(finished) == [*range(len(prompts))]


def test_a_step_shows_whose_each_slot_is():
    """Canvas, plan and ledger of a slot are those of its prompt."""
    prompts, done = crowd(7), {}
    recipe = lastword.Recipe(length=GROWS, block=4)
    model = tiny("dream-tiny")
    whole = answers(model, recipe, prompts)
    for step in steps(model, recipe, prompts, max_batch_size=3):
        start = step.canvas.start
        for slot, prompt in enumerate(step.request_ids):
            if prompt is None:
                continue
            own = step.canvas.tokens[slot, start - len(prompts[prompt]) : start]
            assert own.tolist() == prompts[prompt]
            assert int(step.plan.horizon[slot]) == whole[prompt][1]
            assert step.probe_cost.row(slot) == whole[prompt][2]
        for row in step.finished:
            done[row.request_id] = row
            assert step.cost.row(step.request_ids.index(row.request_id)) == row.cost == whole[row.request_id][3]
            assert row.lengths.hazard.dim() == 1
    assert [done[index].canvas.answer_ids(0) for index in range(7)] == [row[0] for row in whole]


def test_answers_come_in_the_order_of_the_prompts():
    model, prompts = tiny("dream-tiny"), crowd(5)
    some = lastword.generate(model, prompts, length="survival:12", block=4, seed=3, max_batch_size=2)
    every = lastword.generate(model, prompts, length="survival:12", block=4, seed=3)
    assert [answer.prompt for answer in some] == prompts
    for one, other in zip(some, every):
        assert (one.tokens, one.cost, one.horizon) == (other.tokens, other.cost, other.horizon)
        assert torch.allclose(one.lengths.hazard, other.lengths.hazard)
        assert one.seconds > 0


def test_of_the_planned_the_longest_begins_first():
    prompts = [[1], [2, 2, 2, 2], [3, 3], [4, 4, 4]]
    recipe = lastword.Recipe(length=lastword.Fixed(4))
    first = next(iter(steps(tiny("llada-tiny"), recipe, prompts, max_batch_size=3)))
    assert first.request_ids == (1, 2, 0)
    first = next(iter(steps(tiny("llada-tiny"), recipe, prompts, max_batch_size=4)))
    assert first.request_ids == (0, 1, 2, 3)  # nobody waits: as they were given


def test_what_left_its_slot_stays_as_it_is():
    """Rows that came later change the slot, not what was handed out."""
    recipe = lastword.Recipe(length=lastword.Fixed(5), block=2)
    handed, copies = [], []
    for step in steps(tiny("llada-tiny"), recipe, crowd(6), max_batch_size=2):
        handed += step.finished
        copies += [[tensor.clone() for tensor in tree_tensors(done.canvas)] for done in step.finished]
    for done, copy in zip(handed, copies):
        assert all(map(torch.equal, tree_tensors(done.canvas), copy))


def test_hooks_see_all_rows_at_once():
    hooks = lastword.Hooks(tokens=lambda step, canvas: canvas.tokens)
    for function in (lastword.decode, lastword.generate):
        refused = rf"{function.__name__}\(max_batch_size=2\) was given with hooks, which need all rows"
        with pytest.raises(SettingError, match=refused):
            function(tiny("llada-tiny"), PROMPTS, hooks=hooks, max_batch_size=2)
    rows = []

    def noted(step, canvas):
        rows.append(len(canvas.horizon))
        return canvas.tokens

    hooks = lastword.Hooks(tokens=noted)
    lastword.generate(tiny("llada-tiny"), PROMPTS, length="fixed:2", hooks=hooks)
    assert {*rows} == {len(PROMPTS)}


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (
            "generate(toy, 'abc', max_batch_size=0)",
            "SettingError",
            "generate(max_batch_size=0) was given; max_batch_size must be",
        ),
        ("generate(toy, 'abc', max_batch_size=True)", "WrongTypeError", "generate(max_batch_size=True) was given"),
        ("generate(toy, 'abc', max_batch_size='a')", "WrongTypeError", "generate(max_batch_size='a') was given"),
        ("generate(toy, 'abc', max_batch_size=2**40)", "SettingError", "at most 1048576"),
        ("next(lastword.decode(toy, [[1]], max_batch_size=0))", "SettingError", "decode(max_batch_size=0) was given"),
        ("next(lastword.decode(toy, [[1]], max_batch_size=1.5))", "WrongTypeError", "decode(max_batch_size=1.5)"),
        (
            "next(lastword.decode(toy, [[1]], use_cuda_graphs='x'))",
            "SettingError",
            "decode(use_cuda_graphs='x') was given",
        ),
        ("next(lastword.decode(toy, [[1]], use_cuda_graphs=1))", "WrongTypeError", "must be True or False"),
    ],
)
def test_what_is_no_number_of_slots_is_refused(call, kind, says, in_plain_python):
    code = call if "lastword." in call else f"lastword.{call}"
    found, message = in_plain_python([code], with_messages=True)[code]
    assert found == kind
    assert says in message
