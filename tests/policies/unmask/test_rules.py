"""One contract over all rules, on hand-made logits: no model needed."""

from __future__ import annotations

import dataclasses
import math
import pickle
from itertools import islice, product
from typing import Any, NamedTuple

import pytest
import torch

import lastword
from lastword.canvas.canvas import Canvas, Clock
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.unmask.rule import AtRandom, LargestMargin, LowestEntropy, MostConfident, UnmaskTraits
from lastword.policies.unmask.schedule import Cosine, EqualShares, Timesteps
from lastword.policies.unmask.slow_fast import SlowFast
from lastword.policies.unmask.stochastic import CoinFlip, MaskGit
from lastword.policies.unmask.threshold import AboveThreshold, EntropyBound, Factor, LeftmostFirst
from lastword.recipe.registry import PARTS

RANKED = [MostConfident, LargestMargin, LowestEntropy, AtRandom]
RULES = [
    *(kind() for kind in RANKED),
    *(kind(EqualShares(3.0), order_temperature=0.5) for kind in RANKED),
    *(kind(Timesteps(2.0)) for kind in RANKED),
    CoinFlip(),
    CoinFlip(Timesteps(4.0)),
    AboveThreshold(),
    AboveThreshold(0.2),
    AboveThreshold(0.2, max_tokens_per_step=2.0),
    LeftmostFirst(),
    Factor(),
    Factor(3.0),
    EntropyBound(),
    EntropyBound(2.0, order="confidence"),
    EntropyBound(2.0, order="margin"),
    MostConfident(Cosine(2.0)),
    MaskGit(),
    MaskGit(EqualShares(2.0), choice_temperature=1.0),
    SlowFast(),
    SlowFast.released(),
]
RULES += [
    part() for part in PARTS["unmask"].values() if part not in {type(rule) for rule in RULES}
]  # what is new, as it comes
RANDOM = [
    AtRandom(EqualShares(2.0)),
    MostConfident(EqualShares(2.0), 1.0),
    CoinFlip(Timesteps(2.0)),
    MaskGit(Cosine(6.0)),
]


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def first_tick(prediction, block=None):
    return Clock.start(prediction.canvas).tick(prediction.canvas, block)


def choose(rule, prediction, open_masks, clock):
    """What a rule chooses in a first step, over the canvas."""
    columns, state = prediction.columns, rule.initial_state(prediction.canvas)
    chosen, _ = rule.choose(prediction, columns.gather(open_masks), clock, state)
    return columns.scatter(chosen)


def chosen_words(rule, prediction, block=None):
    """The answer places a rule chooses in the first pass, per row."""
    clock, canvas = first_tick(prediction, block), prediction.canvas
    open_masks = canvas.masked & clock.window.columns(canvas.width)
    chosen = choose(rule, prediction, open_masks, clock)
    return [(row.nonzero()[:, 0] - canvas.start).tolist() for row in chosen]


class Pass(NamedTuple):
    """One pass of a run in which every pass says the same."""

    canvas: Canvas  # before it
    clock: Clock
    prediction: Prediction
    state: Any  # before it
    seen: torch.Tensor
    chosen: torch.Tensor  # over the canvas


def following(rule, prediction, block=None):
    """The passes of a rule until nothing is left to fill, 60 at most."""
    canvas, columns = prediction.canvas, prediction.columns
    clock, state = Clock.start(canvas), rule.initial_state(canvas)
    for _ in range(60):
        if not canvas.masked.any():
            return
        clock = clock.tick(canvas, block)
        seen = rule.visible_columns(canvas, clock, state)
        open_masks = columns.gather(canvas.masked & clock.window.columns(canvas.width) & seen)
        now = dataclasses.replace(prediction, canvas=canvas)
        chosen, after = rule.choose(now, open_masks, clock, state)
        chosen = columns.scatter(chosen)
        yield Pass(canvas, clock, now, state, seen, chosen)
        canvas, state = canvas.write(chosen, torch.zeros_like(canvas.tokens)), after
    raise AssertionError(f"{rule} does not seem to end")


# The contract, rule by rule: an assertion that fails names the rule


def test_a_rule_chooses_among_open_masks_only(predicted):
    prediction = predicted(noise(9, 8), noise(4, 8, seed=1))
    for rule, block in product(RULES, (None, 1, 4)):
        for row, places in enumerate(chosen_words(rule, prediction, block)):
            most = min(block or 9, (9, 4)[row])
            assert all(0 <= place < most for place in places), (rule, block)


def test_a_rule_without_coins_fills_at_least_one_mask_of_every_open_row(predicted):
    prediction = predicted(noise(9, 8), noise(1, 8, seed=1), noise(5, 8, seed=2))
    for rule in RULES:
        assert all(chosen_words(rule, prediction)) or isinstance(rule, CoinFlip), rule


def test_a_row_without_open_masks_is_left_alone(predicted):
    prediction = predicted(noise(5, 8), noise(5, 8, seed=1))
    open_masks = prediction.canvas.masked.clone()
    open_masks[0] = False
    for rule in RULES:
        assert not choose(rule, prediction, open_masks, first_tick(prediction))[0].any(), rule


def test_following_a_rule_fills_everything_and_sees_what_it_must(predicted):
    """A rule that drops columns says so, drops them at a row's end, and keeps a mask to fill in sight."""
    for rule in RULES:
        prediction = predicted(noise(9, 8), noise(4, 8, seed=1))
        for number, step in enumerate(following(rule, prediction, block=4)):
            valid, open_masks = step.canvas.valid, step.canvas.masked
            open_masks = open_masks & step.clock.window.columns(step.canvas.width)
            assert not (step.chosen & ~open_masks).any(), rule
            assert ((open_masks & step.seen).any(-1) == open_masks.any(-1)).all(), rule
            if number and rule.traits.hides_columns:
                assert not (step.seen & ~valid).any(), rule
                assert not (step.seen[:, 1:] & valid[:, :-1] & ~step.seen[:, :-1]).any(), rule
            else:
                assert torch.equal(step.seen, valid), rule
    assert {type(rule) for rule in RULES if rule.traits.hides_columns} == {SlowFast}


def test_a_rule_is_plain_data():
    for rule in RULES:
        assert pickle.loads(pickle.dumps(rule)) == rule


def test_a_state_has_the_rows_first_and_says_all_that_a_rule_remembers(predicted):
    """Asked again with the same state and the same dice, a rule says the same and leaves it as it was."""

    def copied(state):
        return type(state)(*(field.clone() for field in state)) if state else state

    def same(one, other):
        assert type(one) is type(other)
        return all(torch.equal(a.nan_to_num(-9), b.nan_to_num(-9)) for a, b in zip(one, other))

    rows = noise(9, 8), noise(4, 8, seed=1)
    for rule in RULES:
        remembers = rule.initial_state(predicted(*rows).canvas) != ()
        assert remembers == isinstance(rule, SlowFast), rule
        for step in islice(following(rule, predicted(*rows), block=4), None if remembers else 1):
            assert all(len(field) == 2 for field in step.state), rule
            open_masks = step.canvas.masked & step.clock.window.columns(step.canvas.width)
            before, told = copied(step.state), []
            for _ in range(2):
                again = dataclasses.replace(predicted(*rows), canvas=step.canvas)
                open_now = again.columns.gather(open_masks & step.seen)
                told.append(rule.choose(again, open_now, step.clock, step.state))
                assert torch.equal(rule.visible_columns(step.canvas, step.clock, step.state), step.seen), rule
            assert torch.equal(told[0][0], told[1][0]), rule
            assert same(told[0][1], told[1][1]), rule
            assert same(before, step.state), rule


def test_leftmost_first_says_of_itself_what_the_rule_it_wraps_says(predicted):
    canvas = predicted(noise(9, 8)).canvas
    for inner in RULES:
        if isinstance(inner, LeftmostFirst):
            continue
        rule = LeftmostFirst(inner)
        assert rule.traits == inner.traits, inner
        assert type(rule.initial_state(canvas)) is type(inner.initial_state(canvas)), inner
    assert len({str(rule.traits) for rule in RULES}) == 5  # so that this says something


def test_quotas_hold_per_row(predicted):
    prediction = predicted(noise(12, 8), noise(4, 8, seed=1), noise(1, 8, seed=2))
    for kind in RANKED:
        counts = [len(places) for places in chosen_words(kind(EqualShares(4.0)), prediction)]
        assert counts == [4, 4, 1], kind


def test_ties_go_to_the_leftmost(predicted, sure):
    prediction = predicted(sure(*[0.5] * 6))
    for kind, count in product((MostConfident, LargestMargin, LowestEntropy), (1, 3, 6)):
        chosen = chosen_words(kind(EqualShares(float(count))), prediction)
        assert chosen == [list(range(count))], kind


def test_most_confident_takes_the_likeliest_candidates(predicted, sure):
    prediction = predicted(sure(0.3, 0.9, 0.5, 0.8))
    assert chosen_words(MostConfident(EqualShares(2.0)), prediction) == [[1, 3]]


def three_kinds_of_sure():
    """Place 0 is likeliest, place 1 leads by most, place 2 is least spread."""
    chances = torch.full((3, 8), 1e-9)
    chances[0, :2] = torch.tensor([0.54, 0.46])
    chances[1, :6] = torch.tensor([0.50, 0.10, 0.10, 0.10, 0.10, 0.10])
    chances[2, :2] = torch.tensor([0.5001, 0.4999])
    return chances.log()


def test_largest_margin_differs_from_most_confident(predicted):
    prediction = predicted(three_kinds_of_sure())
    assert chosen_words(MostConfident(), prediction) == [[0]]
    assert chosen_words(LargestMargin(), prediction) == [[1]]


def test_lowest_entropy_differs_from_largest_margin(predicted):
    prediction = predicted(three_kinds_of_sure()[1:])
    assert chosen_words(LargestMargin(), prediction) == [[0]]
    assert chosen_words(LowestEntropy(), prediction) == [[1]]


def test_random_rules_repeat_per_seed(predicted):
    logits = noise(24, 8)
    for rule in RANDOM:
        picks = [chosen_words(rule, predicted(logits, seeds=[seed])) for seed in (1, 1, 2, 3, 4)]
        assert picks[0] == picks[1], rule
        assert len({str(pick) for pick in picks}) > 1, rule


def test_at_random_reaches_every_mask_alike(predicted):
    logits, counts = torch.zeros(4, 8), torch.zeros(4)
    for seed in range(120):
        counts[chosen_words(AtRandom(), predicted(logits, seeds=[seed]))[0]] += 1
    assert counts.min() > 15


def test_order_temperature_prefers_but_does_not_insist(predicted, sure):
    rule = MostConfident(order_temperature=0.2)
    counts = torch.zeros(2)
    for seed in range(80):
        counts[chosen_words(rule, predicted(sure(0.9, 0.6), seeds=[seed]))[0]] += 1
    # softmax(0.9 / 0.2, 0.6 / 0.2) = 0.82, 0.18
    assert counts[0].item() / 80 == pytest.approx(0.82, abs=0.12)


def test_a_low_order_temperature_still_fills_the_quota_with_open_masks(predicted, sure):
    # exp(-0.6 / 0.001) is 0 in any float: the unlikely masks must win by rank, not by weight.
    rule = MostConfident(EqualShares(3.0), order_temperature=1e-3)
    for seed in range(5):
        prediction = predicted(sure(0.95, 0.3, 0.2, 0.25, 0.35, 0.3), seeds=[seed], prompt=3)
        open_masks = prediction.canvas.masked.clone()
        open_masks[:, -2:] = False
        chosen = choose(rule, prediction, open_masks, first_tick(prediction))
        assert not (chosen & ~open_masks).any(), seed
        assert chosen.sum().item() == 3, seed


def test_coin_flip_fills_the_share_its_schedule_says(predicted):
    # 100 masks in 2 passes: the first coin comes up with 1 - (1 + eps) / 2 = 0.4995.
    rule, logits = CoinFlip(Timesteps(50.0)), torch.zeros(100, 8)
    filled = [len(chosen_words(rule, predicted(logits, seeds=[seed]))[0]) for seed in range(20)]
    assert sum(filled) / 20 == pytest.approx(49.95, abs=5)
    assert len(set(filled)) > 1


@pytest.mark.parametrize("kind", RANKED)
def test_an_impossible_order_temperature_is_refused(kind):
    for temperature in (-1.0, math.inf, math.nan):
        with pytest.raises(SettingError, match="order_temperature"):
            kind(order_temperature=temperature)


def test_a_schedule_of_the_wrong_kind_is_refused_when_the_rule_is_made(in_plain_python):
    codes = [
        "lastword.CoinFlip(schedule=lastword.EqualShares())",
        "part('unmask', 'coin-flip:equal-shares')",
        "lastword.MostConfident(schedule='timesteps')",
        "lastword.MaskGit(schedule='cosine')",
    ]
    outcome = in_plain_python(codes)
    assert all(outcome[code] in ("SettingError", "RecipeError") for code in codes), outcome


# Rules that count by themselves


def sharp(*chances):
    """Logits whose best token has these probabilities, the rest spread evenly over 8 ids."""
    rows = torch.tensor(chances).double()[:, None]
    spread = ((1 - rows) / 7).repeat(1, 8)
    spread[:, 0] = rows[:, 0]
    return spread.log().float()


def test_above_threshold_fills_the_sure_ones_and_always_the_surest(predicted):
    prediction = predicted(sharp(0.95, 0.5, 0.91, 0.3), sharp(0.4, 0.6, 0.5, 0.2))
    assert chosen_words(AboveThreshold(0.9), prediction) == [[0, 2], [1]]


def test_above_threshold_forces_exactly_one_of_equals(predicted):
    assert chosen_words(AboveThreshold(0.9), predicted(sharp(0.5, 0.5, 0.5))) == [[0]]


def test_a_threshold_of_one_is_one_token_a_pass(predicted):
    prediction = predicted(sharp(0.95, 0.5, 0.97))
    assert chosen_words(AboveThreshold(1.0), prediction) == chosen_words(MostConfident(), prediction)


def test_factor_raises_the_bar_with_every_token(predicted):
    # Bars for factor 1: 1/2, 2/3, 3/4, 4/5.
    prediction = predicted(sharp(0.9, 0.7, 0.74, 0.99))
    assert chosen_words(Factor(1.0), prediction) == [[0, 3]]
    assert chosen_words(Factor(1.1), prediction) == [[0, 2, 3]]


def test_factor_does_not_fill_all_when_only_the_last_fails(predicted):
    assert chosen_words(Factor(1.0), predicted(sharp(0.99, 0.95, 0.5))) == [[0, 1]]


def test_entropy_bound_leaves_out_the_largest_entropy(predicted):
    prediction = predicted(sharp(0.9, 0.5, 0.99))
    h = {c: -sum(p * math.log(p) for p in [c] + [(1 - c) / 7] * 7) for c in (0.99, 0.9, 0.5)}
    assert chosen_words(EntropyBound(h[0.99] + 1e-3), prediction) == [[0, 2]]
    assert chosen_words(EntropyBound(h[0.99] + h[0.9] + 1e-3), prediction) == [[0, 1, 2]]


def test_entropy_bound_of_zero_fills_one_and_the_certain_ones(predicted):
    certain = torch.full((1, 8), -200.0)
    certain[0, 2] = 0.0
    logits = torch.cat((sharp(0.9), certain, sharp(0.8), certain))
    assert chosen_words(EntropyBound(0.0), predicted(logits)) == [[0, 1, 3]]
    assert chosen_words(EntropyBound(0.0), predicted(sharp(0.9, 0.8))) == [[0]]


@pytest.mark.parametrize("wrong", [lambda: AboveThreshold(1.5), lambda: Factor(-1.0), lambda: EntropyBound(-0.1)])
def test_bounds_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError):
        wrong()


def filled_per_pass(rule, prediction, block=None):
    """How many masks each pass fills if every pass said the same."""
    return [int(step.chosen.sum()) for step in following(rule, prediction, block)]


def test_a_pace_caps_the_threshold(predicted):
    prediction = predicted(sharp(*[0.95] * 6))
    assert filled_per_pass(AboveThreshold(0.9, max_tokens_per_step=2.0), prediction) == [2, 2, 2]
    assert filled_per_pass(AboveThreshold(0.9, max_tokens_per_step=2.5), prediction) == [2, 3, 1]


def test_what_a_pass_leaves_of_its_pace_later_passes_may_use(predicted):
    unsure, sure = predicted(sharp(*[0.5] * 6)), predicted(sharp(*[0.95] * 6))
    rule, clock, canvas = AboveThreshold(0.9, max_tokens_per_step=2.0), first_tick(unsure), unsure.canvas
    one = choose(rule, unsure, canvas.masked, clock)
    canvas = canvas.write(one, torch.zeros_like(canvas.tokens))
    two_and_the_one_left = choose(rule, sure, canvas.masked, clock.tick(canvas, None))
    assert (int(one.sum()), int(two_and_the_one_left.sum())) == (1, 3)


def test_leftmost_first_fills_one_mask_of_a_new_block_whatever_its_chance(predicted):
    prediction = predicted(sharp(0.3, 0.95, 0.95, 0.3, 0.95, 0.95))
    assert chosen_words(LeftmostFirst(AboveThreshold(0.9)), prediction, block=3) == [[0]]
    assert filled_per_pass(LeftmostFirst(AboveThreshold(0.9)), prediction, block=3) == [1, 2, 1, 2]


def test_leftmost_first_wraps_a_rule(in_plain_python):
    outcome = in_plain_python(["lastword.LeftmostFirst(0.9)", "lastword.AboveThreshold(max_tokens_per_step=0.5)"])
    assert set(outcome.values()) == {"SettingError"}


# MaskGit: noise that fades


def gumbel(row_seed, columns):
    generator = torch.Generator().manual_seed(row_seed)
    uniform = torch.rand(columns, generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform))


def test_maskgit_ranks_by_log_probability_and_fading_noise(predicted, sure):
    """The formula itself: 12 masks in 3 passes, so the first pass has 4.5 * (1 - 1/3) of noise."""
    chances = [0.9, 0.2, 0.5, 0.4, 0.7, 0.3, 0.25, 0.6, 0.8, 0.35, 0.45, 0.55]
    count = 12 - math.floor(12 * math.cos(math.pi / 6))
    for seed in range(6):
        drawn = gumbel(seed, 2 + len(chances))[2:]  # the prompt's two columns are drawn for as well
        score = torch.tensor(chances, dtype=torch.float64).log() + 4.5 * (1 - 1 / 3) * drawn
        expected = sorted(score.argsort(descending=True)[:count].tolist())
        prediction = predicted(sure(*chances), seeds=[seed], prompt=2)
        assert chosen_words(MaskGit(Cosine(4.0)), prediction) == [expected], seed


def test_maskgits_last_pass_has_no_noise(predicted):
    prediction = predicted(noise(6, 8))
    last = first_tick(prediction).tick(prediction.canvas, None)  # pass 2 of 2, with masks to choose from
    open_masks, quiet = prediction.canvas.masked, MostConfident(EqualShares(3.0))
    state = prediction.generators._generators[0].get_state()
    chosen = choose(MaskGit(EqualShares(3.0), choice_temperature=1e6), prediction, open_masks, last)
    assert torch.equal(chosen, choose(quiet, prediction, open_masks, last))
    assert chosen.sum() == 3
    assert torch.equal(prediction.generators._generators[0].get_state(), state)


def test_maskgit_without_noise_is_most_confident(predicted):
    quiet, plain = MaskGit(EqualShares(7.0), choice_temperature=0.0), MostConfident(EqualShares(7.0))
    for seed in range(5):
        prediction = predicted(noise(20, 8, seed=seed))
        assert chosen_words(quiet, prediction) == chosen_words(plain, prediction), seed


def test_maskgit_fills_its_quota_even_with_candidates_of_no_probability(predicted):
    logits = torch.full((4, 8), -1e5)
    logits[:, 6] = 0.0  # the mask takes all probability, and is never the candidate
    assert chosen_words(MaskGit(EqualShares(2.0), choice_temperature=0.0), predicted(logits)) == [[0, 1]]


# SlowFast: one fast phase after a few slow passes


def run_of(rule, prediction, passes, block=None):
    """(places chosen, columns seen) of each pass, for a prediction that never changes."""
    start = prediction.canvas.start
    return [
        ((step.chosen[0].nonzero()[:, 0] - start).tolist(), int(step.seen.sum()))
        for step in islice(following(rule, prediction, block), passes)
    ]


CHANCES = [0.5, 0.6, 0.95, 0.93, 0.2, 0.91, 0.15, 0.15]


def test_slow_fast_as_published(predicted, sure):
    """Slow passes fill one mask each, however many are sure.

    Both notes say 6 (place 5 is the last that reaches 0.3), so the span is [0, 6). The first fast
    pass sees all 9 columns, later ones prompt and span: 7.
    """
    rule = SlowFast(high_confidence=0.9, min_confidence=0.3)
    assert run_of(rule, predicted(sure(*CHANCES)), 6) == [([2], 9), ([3], 9), ([5], 9), ([1], 7), ([0], 7), ([4], 7)]


def test_slow_fast_as_released_fills_together_and_runs_every_slow_pass(predicted, sure):
    """The notes are 6, 2, 1, 1: they settle on 1 in the third pass, but a fourth slow one follows.

    By then [0, 1) is full: the next cycle begins at once, slowly.
    """
    rule = SlowFast(high_confidence=0.9, min_confidence=0.3, exploration_steps=4, as_released=True)
    assert run_of(rule, predicted(sure(*CHANCES)), 6) == [
        ([2, 3, 5], 9),
        ([1], 9),
        ([0], 9),
        ([4], 9),
        ([6], 9),
        ([7], 9),
    ]


def test_slow_fast_takes_the_mean_of_notes_that_do_not_settle(predicted, sure):
    """Notes 8 and 3 after two slow passes: the span is [0, 5), and place 5 waits."""
    rule = SlowFast(high_confidence=0.99, min_confidence=0.5, exploration_steps=2)
    chances = [0.1, 0.1, 0.55, 0.1, 0.1, 0.1, 0.1, 0.9]
    assert run_of(rule, predicted(sure(*chances)), 4) == [([7], 9), ([2], 9), ([0], 9), ([1], 6)]


def test_slow_fast_begins_anew_in_every_block(predicted, sure):
    told = run_of(SlowFast(high_confidence=0.9, min_confidence=0.3), predicted(sure(*CHANCES)), 8, block=4)
    assert [place for places, _ in told[:4] for place in places] == [2, 3, 1, 0]
    assert told[4] == ([5], 9)  # a slow pass: it sees everything and fills one


def test_slow_fast_has_the_papers_numbers_and_the_codes():
    assert SlowFast() == SlowFast(0.85, 0.1, 8, 2, 1.0, False)
    assert SlowFast.released() == SlowFast(0.9, 0.3, 6, 2, 1.0, True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: SlowFast(high_confidence=0.0), "high_confidence"),
        (lambda: SlowFast(min_confidence=1.5), "min_confidence"),
        (lambda: SlowFast(exploration_steps=0), "exploration_steps"),
        (lambda: SlowFast(stability_window=0), "stability_window"),
        (lambda: SlowFast(stability_std=-1.0), "stability_std"),
        (lambda: MaskGit(choice_temperature=-1.0), "choice_temperature"),
    ],
)
def test_impossible_settings_are_refused(wrong, words):
    with pytest.raises(SettingError, match=words):
        wrong()


class Idle(lastword.UnmaskRule):
    def choose(self, prediction, open, clock, state):
        return torch.zeros_like(open), state


class Late(MostConfident):
    def choose(self, prediction, open, clock, state):
        return torch.zeros_like(open), state


class Unsaid(Idle):
    """Follows a schedule and does not say how many passes it takes."""

    traits = UnmaskTraits(follows_schedule=True)


class FirstRow(lastword.UnmaskRule):
    def choose(self, prediction, open, clock, state):
        return open & (torch.arange(len(open)) == 0)[:, None], state


def test_a_rule_that_chooses_nothing_is_stopped_instead_of_waited_for(toy):
    recipe = lastword.Recipe(length=lastword.Fixed(4), unmask=Idle())
    with pytest.raises(SettingError, match="Idle chose no mask of row 0 in step 0"):
        list(lastword.decode(toy, [[1, 2]], recipe))
    recipe = lastword.Recipe(length=lastword.Fixed(4), unmask=FirstRow())
    assert len(list(lastword.decode(toy, [[1, 2]], recipe))) == 1  # nothing is left to choose from
    with pytest.raises(SettingError, match="FirstRow chose no mask of row 1 in step 0"):
        list(lastword.decode(toy, [[1, 2], [1, 2]], recipe))


@pytest.mark.parametrize("block", [None, 2])
def test_a_rule_on_a_schedule_that_is_over_is_stopped_too(block, toy):
    recipe = lastword.Recipe(length=lastword.Fixed(4), unmask=Late(), block=block)
    over = block or 4
    with pytest.raises(SettingError, match=f"Late chose no mask of row 0 in step {over}"):
        list(lastword.decode(toy, [[1, 2]], recipe))


def test_a_rule_that_does_not_say_how_long_it_takes_may_idle(toy):
    assert Unsaid().max_passes(4) is None
    recipe = lastword.Recipe(length=lastword.Fixed(4), unmask=Unsaid())
    assert len(list(islice(lastword.decode(toy, [[1, 2]], recipe), 9))) == 9


@dataclasses.dataclass(frozen=True)
class Forgetful(lastword.UnmaskRule):
    """Returns what it is told to, whatever the contract says."""

    returns: object = None

    def choose(self, prediction, open, clock, state):
        return open if self.returns is None else (open[:, :1].repeat(1, 99), state)


@pytest.mark.parametrize(("rule", "words"), [(Forgetful(), "a pair"), (Forgetful(1), "of shape")])
def test_a_rule_that_returns_something_else_is_told_so(rule, words, toy):
    recipe = lastword.Recipe(length=lastword.Fixed(4), unmask=rule)
    with pytest.raises(SettingError, match=f"Forgetful.*{words}"):
        lastword.generate(toy, ["abc", "bcdxyz"], recipe=recipe)
