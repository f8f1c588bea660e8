"""One contract over all commit rules, then each by hand-made logits."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
import torch

from lastword.canvas.canvas import Clock
from lastword.decoding.loop import decode
from lastword.errors import SettingError
from lastword.policies.commit import CommitRule, Never, Prophet, StableMargin
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy, LengthTraits, Plan
from lastword.policies.length.wrappers import GrowWhenFull, StopAtEnd
from lastword.recipe.recipe import Recipe

RULES = [
    Never(),
    Prophet(),
    Prophet("margin", answer_start=3, answer_length=2, literals=((0, 1), (-1, 2))),
    StableMargin(),
    StableMargin("margin", start_threshold=3.0, end_threshold=1.0),
]


@pytest.fixture
def asked(predicted):
    prediction = predicted(torch.zeros(5, 8), torch.zeros(2, 8))
    canvas = prediction.canvas
    return prediction, canvas, Clock.start(canvas).tick(canvas, None)


def test_a_rule_answers_once_per_row(asked):
    for rule in RULES:
        ready = rule.ready(*asked)
        assert ready.dtype == torch.bool, rule
        assert ready.shape == (2,), rule
        assert not ready.any(), rule  # flat logits decide nothing


def test_a_rule_is_plain_data():
    for rule in RULES:
        assert pickle.loads(pickle.dumps(rule)) == rule
        assert Recipe.from_json(Recipe(length=Fixed(9), commit=rule).to_json()).commit == rule


def test_every_rule_but_never_reads_the_answer():
    assert [rule.traits.reads_answer for rule in RULES] == [rule != Never() for rule in RULES]


class AfterTwo(CommitRule):
    def ready(self, prediction, canvas, clock):
        return clock.step >= 1


def test_a_rule_that_is_ready_fills_every_mask_at_once(toy):
    steps = list(decode(toy, [[1, 2], [3]], Recipe(length=Fixed(9), commit=AfterTwo(), block=4)))
    assert len(steps) == 2
    assert steps[0].chosen.sum(-1).tolist() == [1, 1]
    assert steps[1].chosen.sum(-1).tolist() == [8, 8]
    assert not steps[1].canvas.masked.any()


def test_a_rule_is_shown_the_canvas_with_this_passes_own_choices(toy):
    """So that work done counts this pass, as the peers' step / steps does."""
    left = []

    class Watching(AfterTwo):
        def ready(self, prediction, canvas, clock):
            left.append((prediction.canvas.masked.sum(-1).tolist(), canvas.masked.sum(-1).tolist()))
            return super().ready(prediction, canvas, clock)

    list(decode(toy, [[1, 2], [3]], Recipe(length=Fixed(9), commit=Watching())))
    assert left == [([9, 9], [8, 8]), ([8, 8], [7, 7])]


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize(("cache", "passes"), [("none", 2), ("prefix", 2), ("dual", 5)])
def test_a_commit_waits_for_a_pass_that_reads_every_mask(name, cache, passes, request):
    """A dual cache's passes read one block; the next that reads all is the next block's first."""
    recipe = Recipe(length=Fixed(9), commit=AfterTwo(), block=4).with_choices(cache=cache)
    model = request.getfixturevalue(name)
    steps = list(decode(model, [[5, 6]], recipe))
    assert len(steps) == passes
    assert not steps[-1].canvas.masked.any()


class Undecided(CommitRule):
    """Reads the whole answer, as every rule that may commit does, and never commits."""

    def ready(self, prediction, canvas, clock):
        return torch.zeros(len(canvas.horizon), dtype=torch.bool)


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cached_pass_reads_only_what_it_computed(name, cache, request):
    recipe = Recipe(length=Fixed(9), commit=Undecided(), block=4).with_choices(cache=cache)
    model = request.getfixturevalue(name)
    for step in decode(model, [[5, 6], [7]], recipe):
        stale = recipe.cache.stale(step.prediction.canvas, step.clock)
        assert not (step.prediction.read_mask & ~stale).any()


# Rules that measure a lead


def leading(*gaps):
    """Logits [T, 8] whose best token leads the second by these gaps; no third has a chance."""
    logits = torch.full((len(gaps), 8), -90.0)
    logits[:, 0], logits[:, 1] = torch.tensor(gaps), 0.0
    return logits


def verdict(rule, prediction, filled=0):
    """Is the rule ready once this many slots of every row are filled, from the left?"""
    canvas = prediction.canvas
    first = torch.arange(canvas.width) < canvas.start + filled
    canvas = canvas.write(first.expand_as(canvas.masked), torch.zeros_like(canvas.tokens))
    clock = Clock.start(canvas).tick(canvas, None)
    return rule.ready(prediction, canvas, clock).tolist()


def test_prophet_looks_at_the_end_of_each_rows_own_canvas(predicted):
    decided, open_ended = [0.0] * 4 + [9.0] * 2, [9.0] * 8 + [0.0] * 2
    prediction = predicted(leading(*decided), leading(*open_ended))
    assert verdict(Prophet(answer_start=-2, answer_length=2), prediction) == [True, False]


def test_prophet_takes_an_absolute_place_as_its_own_code_does(predicted):
    prediction = predicted(leading(0.0, 0.0, 9.0, 9.0, 0.0), leading(9.0, 9.0, 0.0, 0.0, 9.0))
    assert verdict(Prophet(answer_start=2, answer_length=2), prediction) == [True, False]


def test_prophets_region_is_clipped_to_the_canvas(predicted):
    prediction = predicted(leading(0.0, 0.0, 8.0), leading(8.0), leading(8.0, 8.0))
    # Row 0 has one slot of the region, rows 1 and 2 none: they can never be ready.
    assert verdict(Prophet(answer_start=2, answer_length=5), prediction) == [True, False, False]
    # Counted from the end, a region wider than the row begins with the row.
    assert verdict(Prophet(answer_start=-3, answer_length=5), prediction) == [False, True, True]


def test_prophet_averages_the_region(predicted):
    prediction = predicted(leading(0.0, 5.0, 10.0), leading(0.0, 5.0, 9.8))
    assert verdict(Prophet(answer_start=-2, answer_length=2), prediction) == [True, False]


@pytest.mark.parametrize(("filled", "bar"), [(0, 7.5), (32, 7.5), (33, 5.0), (66, 5.0), (67, 2.5), (99, 2.5)])
def test_prophets_bar_falls_with_work_done(predicted, filled, bar):
    above, below = leading(*[bar + 0.01] * 100), leading(*[bar - 0.01] * 100)
    assert verdict(Prophet(), predicted(above, below), filled) == [True, False]


def test_end_tokens_written_behind_an_answer_are_none_of_its_work(predicted):
    """Two slots of four are filled, and two end tokens close them: progress is a half, not two thirds."""
    prediction = predicted(torch.zeros(4, 8))
    canvas = prediction.canvas.append_suffix(prediction.canvas.ids.end, torch.tensor([2]))
    first = canvas.answer & (torch.arange(canvas.width) < canvas.start + 2)
    canvas = canvas.write(first, torch.zeros_like(canvas.tokens))
    asked = []

    class Asking(StableMargin):
        def threshold(self, progress):
            asked.append(progress.tolist())
            return super().threshold(progress)

    assert int(Asking().span(canvas).sum()) == 4
    Asking().ready(predicted(torch.zeros(6, 8)), canvas, Clock.start(canvas).tick(canvas, None))
    assert asked == [[0.5]]


def test_progress_is_the_rows_own(predicted):
    """Five slots filled are half of one row and a quarter of the other."""
    prediction = predicted(leading(*[6.0] * 10), leading(*[6.0] * 20))
    assert verdict(Prophet(), prediction, filled=5) == [True, False]


@pytest.mark.parametrize("kind", [Prophet, StableMargin])
def test_gap_and_margin_agree_where_only_two_tokens_have_a_chance(kind, predicted):
    for gap in (1.0, 2.4, 2.6, 4.9, 5.1, 7.4, 7.6):
        prediction = predicted(leading(*[gap] * 6))
        for filled in (0, 3, 5):
            assert verdict(kind("gap"), prediction, filled) == verdict(kind("margin"), prediction, filled)


def test_one_very_sure_column_carries_the_gap_but_not_the_margin(predicted):
    prediction = predicted(leading(40.0, 0.1, 0.1, 0.1, 0.1))
    assert verdict(Prophet("gap"), prediction) == [True]
    assert verdict(Prophet("margin"), prediction) == [False]


def test_stable_margin_averages_the_whole_answer(predicted):
    prediction = predicted(leading(0.0, 0.0, 22.6), leading(0.0, 0.0, 22.4))
    assert verdict(StableMargin(), prediction) == [True, False]


@pytest.mark.parametrize("filled", [0, 1, 4, 7, 9])
def test_stable_margins_bar_is_a_straight_line(predicted, filled):
    bar = 6.0 - 4.0 * filled / 10
    prediction = predicted(leading(*[bar + 0.01] * 10), leading(*[bar - 0.01] * 10))
    assert verdict(StableMargin(start_threshold=6.0, end_threshold=2.0), prediction, filled) == [True, False]


def test_literals_are_written_first_and_cost_no_pass(llada):
    rule = Prophet(early_threshold=1e9, middle_threshold=1e9, late_threshold=1e9, literals=((2, 11), (-1, 22)))
    steps = list(decode(llada, [[5, 6], [7, 8, 9]], Recipe(length=Fixed(8), commit=rule, block=4)))
    assert len(steps) == 6
    for step in steps:
        answers = step.prediction.canvas.tokens[:, step.canvas.start :]
        assert answers[:, 2].tolist() == [11, 11]
        assert answers[:, 7].tolist() == [22, 22]
    # The first block's clock opened with the masks that were left in it.
    assert steps[0].clock.masks_at_start.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("literals", "words"),
    [
        (((8, 1),), "slot 8.*8 slots"),
        (((-9, 1),), "slot -9.*8 slots"),
        (((0, 999),), "literal id 999"),
        (((0, 376),), "literal id 376"),
        (tuple((slot, 1) for slot in range(8)), "fill a whole canvas"),
    ],
)
def test_literals_that_cannot_be_placed_are_refused(llada, literals, words):
    with pytest.raises(SettingError, match=words):
        next(decode(llada, [[5, 6]], Recipe(length=Fixed(8), commit=Prophet(literals=literals))))


def test_only_a_prophet_that_counts_from_the_left_or_wrote_something_counts_slots():
    assert not Prophet().traits.uses_slot_indices
    assert not StableMargin().traits.uses_slot_indices
    assert Prophet(answer_start=0).traits.uses_slot_indices
    assert Prophet(literals=((-1, 3),)).traits.uses_slot_indices


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Prophet("odds"), "measure"),
        (lambda: Prophet(early_threshold=-1.0), "early_threshold"),
        (lambda: Prophet(answer_length=0), "answer_length"),
        (lambda: Prophet(early_until=0.7, middle_until=0.6), "middle_until"),
        (lambda: Prophet(middle_until=1.1), "middle_until"),
        (lambda: Prophet(literals=((1, 2), (1, 3))), "twice"),
        (lambda: Prophet(literals=((1, -2),)), "id"),
        (lambda: StableMargin(start_threshold=1.0, end_threshold=2.0), "falls"),
        (lambda: StableMargin(end_threshold=-0.1), "end_threshold"),
    ],
)
def test_impossible_settings_are_refused(wrong, words):
    with pytest.raises(SettingError, match=words):
        wrong()


def test_settings_of_the_wrong_kind_are_refused(in_plain_python):
    codes = [
        "lastword.Prophet(literals=5)",
        "lastword.Prophet(literals=(1, 2))",
        "lastword.Prophet(literals=((0.5, 2),))",
        "lastword.Prophet(answer_start=2.5)",
        "lastword.Prophet(early_threshold='high')",
        "lastword.StableMargin(start_threshold='high')",
        "part('commit', 'prophet:answer_length=2.5')",
    ]
    outcome = in_plain_python(codes)
    assert set(outcome.values()) == {"SettingError"}, outcome


# Lengths that ask for room


@dataclass(frozen=True)
class GrowsThrice(LengthPolicy):
    """Two slots more after each of the first three passes, in every other row."""

    traits = LengthTraits(resizes="any time", grows=True)

    def plan(self, probe):
        return Plan(torch.full((probe.num_rows,), 5))

    def revise(self, canvas, prediction, clock, state):
        every_other = torch.arange(len(canvas.horizon)) % 2
        return canvas.extend(torch.where(clock.step < 3, 2 * every_other, 0)), state


class AtOnce(CommitRule):
    def ready(self, prediction, canvas, clock):
        return torch.full((len(canvas.horizon),), True)


def test_a_row_that_asks_for_room_is_not_committed(toy):
    steps = list(decode(toy, [[1, 2], [3]], Recipe(length=GrowsThrice(), commit=AtOnce())))
    assert steps[0].chosen.sum(-1).tolist() == [5, 1]  # the first row did not ask
    assert [step.chosen.sum(-1).tolist()[1] for step in steps] == [1, 1, 1, 8]
    assert steps[-1].canvas.horizon.tolist() == [5, 11]
    assert not steps[-1].canvas.masked.any()


def test_growth_between_blocks_holds_no_commit_up(toy):
    """A full row without an end grows anyhow, so there is nothing to wait for."""
    length = StopAtEnd(GrowWhenFull(Fixed(4), increment=2, limit=8))
    steps = list(decode(toy, [[5, 6]], Recipe(length=length, commit=AfterTwo(), block=2)))
    # The second pass completes a block with one more left, and is committed all the same.
    assert [step.chosen.sum().item() for step in steps] == [1, 3, 2, 2]
    assert [int(step.canvas.horizon[0]) for step in steps] == [4, 6, 8, 8]
