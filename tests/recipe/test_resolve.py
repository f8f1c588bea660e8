"""What a recipe leaves unsaid is filled in for a model; what it says is kept, or refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace

import pytest
import torch

import lastword
from lastword import (
    AboveThreshold,
    Auto,
    Budget,
    Calibrated,
    Daedal,
    DualCache,
    FeatureCache,
    Fixed,
    GrowWhenFull,
    Recipe,
    Reread,
    RhoEos,
    Secant,
    StopAtEnd,
    Survival,
    SurvivalAtStep,
)
from lastword.calibration import Calibration, Ratios
from lastword.errors import CapacityError, SettingError
from lastword.models.toy import Toy
from lastword.models.weights import model_key
from lastword.policies.length.policy import LengthPolicy, LengthTraits, ModelLimits, Plan
from lastword.policies.length.wrappers import combined_traits, policy_layers
from lastword.recipe.registry import PARTS, default_length
from lastword.recipe.resolve import BeyondTrainingWarning, resolve


class Sized(Toy):
    """A toy that is made for 256 slots, with 2048 positions."""

    def __init__(self):
        super().__init__()
        self.default_max_new_tokens, self.max_seq_len, self.supports_cache = 256, 2048, True


class Unasked(Sized):
    """A model of which no pass may be run."""

    def __call__(self, tokens, read, **given):
        raise AssertionError("a pass was run")


PROMPT = [0, 1, 2]


@pytest.fixture
def silent():
    """Whatever warns fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def resolved(length, model=None, **settings):
    return resolve(Recipe(length=length), model or Unasked(), **settings).length


# What was left unsaid


UNSAID = (
    (Fixed(), Fixed(256)),
    (Survival(), Survival(256)),
    (Survival(interpretation=Auto()), Survival(256, interpretation=Auto())),
    (SurvivalAtStep(3), SurvivalAtStep(3, Survival(256))),
    (Reread(), Reread(Survival(256))),
    (Secant(), Secant(256, 128)),
    (Daedal(), Daedal(64, 256)),
    (RhoEos(), RhoEos(64, 256)),
    (default_length(), default_length(256)),
    (StopAtEnd(Fixed()), StopAtEnd(Fixed(256))),
    (StopAtEnd(Daedal()), StopAtEnd(Daedal(64, 256))),
    (Budget(default_length(), max_passes=40), Budget(default_length(256), max_passes=40)),
    (
        StopAtEnd(GrowWhenFull(Budget(Reread(), max_passes=256))),
        StopAtEnd(GrowWhenFull(Budget(Reread(Survival(256)), max_passes=256), limit=256)),
    ),
)


def test_a_number_that_was_left_out_is_the_model_s(silent):
    for unsaid, sized in UNSAID:
        assert resolved(unsaid) == sized
    assert resolve(Recipe(), Unasked()).length == default_length(256)


def test_where_the_model_is_small_the_first_canvas_is_no_larger(silent):
    small = Unasked()
    small.default_max_new_tokens = 48
    for unsaid, sized in (
        (Secant(), Secant(48, 48)),
        (Daedal(), Daedal(48, 48)),
        (RhoEos(initial=8), RhoEos(8, 48)),
        (Fixed(), Fixed(48)),
    ):
        assert resolved(unsaid, small) == sized


def test_growth_without_a_limit_keeps_to_the_one_inside_or_the_model_s(silent):
    for unsaid, limit in (
        (GrowWhenFull(Survival(128)), 128),
        (GrowWhenFull(StopAtEnd(Survival(128))), 128),
        (GrowWhenFull(Budget(Reread(Survival(128)), max_passes=256)), 128),
        (GrowWhenFull(Fixed(64)), 256),
        (GrowWhenFull(Survival()), 256),
        (GrowWhenFull(Survival(), limit=128), 128),
    ):
        assert resolved(unsaid).limit == limit, unsaid


def test_a_model_that_does_not_say_has_the_usual_canvas():
    def forward(tokens):
        raise AssertionError("no pass is run")

    assert resolved(Fixed(), lastword.Adapter(forward, Toy.ids)) == Fixed(1024)


def test_every_length_is_settled_completely_and_to_itself(silent):
    """Nothing is None that was left to the model, whatever part it is, inside others too."""
    model = Unasked()
    model.calibration = calibration(model)
    made = [cls() for cls in PARTS["length"].values() if cls is not Budget]
    for length in [*made, *map(StopAtEnd, made), *(unsaid for unsaid, _ in UNSAID)]:
        once = resolve(Recipe(length=length), model, [PROMPT])
        for policy in policy_layers(once.length):
            holds = {name: getattr(policy, name, 0) for name in ("slots", "limit", "initial")}
            assert None not in holds.values(), policy
        assert resolve(once, model, [PROMPT]) == once


def test_blocks_of_32_come_with_the_parts_that_work_by_block(silent):
    assert Recipe().block is None
    for recipe, block in (
        (Recipe(), 32),
        (Recipe(unmask=AboveThreshold()), 32),
        (Recipe(block=8), 8),
        (Recipe(length=Survival()), None),  # the paper: one block for the whole answer
        (Recipe().with_choices(length="survival"), None),
        (Recipe(length=Survival(), cache=DualCache()), 32),
        (Recipe(length=Survival(), cache=FeatureCache()), None),
        (Recipe(length=GrowWhenFull(Fixed(9))), None),
        (Recipe(length=GrowWhenFull(StopAtEnd(Fixed(9)))), 32),
        (Recipe(length=Budget(Reread(), max_passes=256)), 32),
    ):
        assert resolve(recipe, Unasked()).block == block, recipe


def test_decoding_says_what_ran():
    model = Sized()
    recipe = Recipe(length=StopAtEnd(GrowWhenFull(Survival(16))), unmask=AboveThreshold(0.3))
    ran = resolve(recipe, model)
    assert (ran.block, ran.length) == (32, StopAtEnd(GrowWhenFull(Survival(16), limit=16)))
    first, *_ = lastword.decode(model, [PROMPT], recipe)
    assert first.recipe == ran
    seen = []
    answer = lastword.generate(model, PROMPT, recipe=recipe, on_step=seen.append)
    assert answer.recipe == ran
    assert len(seen) == answer.cost.forward_passes
    assert all(step.recipe == ran for step in seen)


# A number is a promise


PROMISED = (
    Fixed(1024),
    Survival(1024),
    Secant(1024, 9),
    Daedal(9, 1024),
    RhoEos(9, 1024),
    Reread(Survival(1024)),
    SurvivalAtStep(2, Survival(1024)),
    StopAtEnd(Fixed(1024)),
    GrowWhenFull(Fixed(64), limit=1024),
    GrowWhenFull(Survival(1024), limit=64),
    default_length(1024),
)


def test_more_than_the_model_is_made_for_is_kept_with_one_warning():
    for length in PROMISED:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            kept = resolve(Recipe(length=length), Unasked(), [PROMPT])
        assert kept.length == length.resolved(ModelLimits(256)), length
        traits = combined_traits(kept.length)
        assert max(traits.min_slots, traits.max_slots or 0) == 1024, length
        assert [one.category for one in warned] == [BeyondTrainingWarning], length
        assert "1024 slots were requested and the model is made for 256" in str(warned[0].message)
    assert settled_quietly(Fixed(1024)) == Fixed(1024)


def settled_quietly(length, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondTrainingWarning)
        return resolved(length, **settings)


def test_a_decoding_beyond_training_warns_once():
    with pytest.warns(BeyondTrainingWarning) as warned:
        answer = lastword.generate(Sized(), PROMPT, length=Fixed(300), unmask=AboveThreshold(0.1), block=100)
    assert len(warned) == 1
    assert (answer.horizon, answer.recipe.length) == (300, Fixed(300))


def test_what_the_model_is_made_for_warns_of_nothing(silent):
    for length in (Fixed(256), Survival(256), GrowWhenFull(Fixed(9), limit=256), Fixed(9), Fixed()):
        resolved(length, prompts=[PROMPT])


def test_what_does_not_fit_the_positions_is_refused_before_any_pass_unless_allowed():
    cramped = Unasked()
    cramped.max_seq_len = 1026
    for length in PROMISED:
        with pytest.raises(CapacityError, match=r"horizon 1024 \+ prompt 3 exceeds .* 1026.* 1023"):
            next(lastword.decode(cramped, [[1], PROMPT], Recipe(length=length)))
        allowed = settled_quietly(length, model=cramped, prompts=[[1], PROMPT], exceed_max_seq_len=True)
        assert allowed == settled_quietly(length)
        assert settled_quietly(length, model=cramped, prompts=[[1], [1, 2]]) == allowed  # it fits


def test_a_refusal_is_not_preceded_by_a_warning(silent):
    cramped = Unasked()
    cramped.max_seq_len = 1026
    with pytest.raises(CapacityError):
        resolved(Fixed(1024), cramped, prompts=[PROMPT])


def test_a_limit_that_was_left_out_fits_behind_the_prompt(silent):
    cramped = Unasked()
    cramped.max_seq_len = 200
    assert resolved(Survival(), cramped, prompts=[PROMPT]) == Survival(197)
    assert resolved(default_length(), cramped, prompts=[PROMPT]) == default_length(197)
    assert resolved(Survival(), cramped) == Survival(256)
    assert resolved(Survival(), cramped, prompts=[PROMPT], exceed_max_seq_len=True) == Survival(256)


def test_prompts_that_leave_different_room_have_no_one_limit():
    cramped = Unasked()
    cramped.max_seq_len = 200
    with pytest.raises(CapacityError, match="leaves 190 of the 256 slots"):
        resolved(Survival(), cramped, prompts=[[1] * 10, PROMPT])
    assert resolved(Survival(190), cramped, prompts=[[1] * 10, PROMPT]) == Survival(190)
    with pytest.raises(CapacityError, match="the prompt alone is too long"):
        resolved(Survival(), cramped, prompts=[[1] * 200])


def test_rows_that_leave_less_room_decode_apart_and_as_if_alone():
    cramped = Sized()
    cramped.max_seq_len = 40
    prompts = [[1, 2], [1] * 30, [3], [2] * 30]
    lengths = (Survival(), StopAtEnd(Survival()), Survival(10))
    for length in lengths:
        together = lastword.generate(cramped, prompts, length=length, seed=5)
        for row, answer in enumerate(together):
            alone = lastword.generate(cramped, prompts[row], length=length, seed=5 + row)
            assert (answer.canvas, answer.cost) == (alone.canvas, alone.cost)
            assert answer.recipe == alone.recipe


# Room


def test_room_shortens_what_was_said_and_what_was_not(silent):
    for length, short in (
        (Fixed(1024), Fixed(100)),
        (Fixed(64), Fixed(64)),
        (Fixed(), Fixed(100)),
        (Survival(128), Survival(100)),
        (Secant(1024, 128), Secant(100, 100)),
        (Daedal(), Daedal(64, 100)),
        (RhoEos(128, 1024), RhoEos(100, 100)),
        (Reread(Survival(1024)), Reread(Survival(100))),
        (default_length(1024), default_length(100)),
        (GrowWhenFull(Fixed(64)), GrowWhenFull(Fixed(64), limit=100)),
        (Budget(StopAtEnd(Fixed(300)), 9), Budget(StopAtEnd(Fixed(100)), 9)),
    ):
        assert resolved(length, available_slots=100) == short
    recipe = resolve(Recipe(length=default_length(1024)), Unasked(), available_slots=100)
    assert resolve(recipe, Unasked(), available_slots=2000) == recipe  # what is settled stays


def test_where_nothing_is_left_to_grow_to():
    """An evaluation goes on without growth; an unsaid limit leaves room for one; a said one is refused."""
    assert resolved(GrowWhenFull(Fixed(100)), available_slots=64) == Fixed(64)
    with pytest.warns(BeyondTrainingWarning, match="288 slots"):
        assert resolved(GrowWhenFull(Fixed())) == GrowWhenFull(Fixed(256), limit=288)
    with pytest.raises(SettingError, match="limit of 256 around a plan of 256 slots"):
        resolved(GrowWhenFull(Fixed(256), limit=256))


def test_a_first_canvas_beyond_the_model_is_kept_beside_an_unsaid_limit():
    for length in (Daedal(initial=300), RhoEos(initial=300), Secant(initial=300)):
        with pytest.warns(BeyondTrainingWarning, match="300 slots"):
            assert (resolved(length).initial, resolved(length).limit) == (300, 300)


def test_a_cache_is_refused_before_the_first_pass_for_a_model_that_keeps_nothing():
    with pytest.raises(SettingError, match="DualCache was given for a Toy"):
        resolve(Recipe(length=Fixed(8), cache=DualCache()), Toy())


@dataclass(frozen=True)
class Half(LengthPolicy):
    """A policy of a user's own that passes `resolved` on, and is no Wrapper."""

    inner: LengthPolicy

    def resolved(self, limits):
        return replace(self, inner=self.inner.resolved(limits))

    def plan(self, probe):
        return self.inner.plan(probe)


def test_what_holds_calibrated_anywhere_is_held_to_the_calibration():
    model = Unasked()
    made_with = {"recipe": json.loads(Recipe(length=Fixed(9), block=8).to_json())}
    model.calibration = replace(calibration(model), made_with=made_with)
    assert resolve(Recipe(length=Half(Calibrated(0.5)), block=8), model)
    assert resolve(Recipe(length=Half(Calibrated(0.5))), model).block == 8
    with pytest.raises(SettingError, match="with block 8, and this recipe has block 4"):
        resolve(Recipe(length=Half(Calibrated(0.5)), block=4), model)


# Calibration


def calibration(model):
    return Calibration(
        model_key=model_key(model),
        limit=200,
        interpretation=lastword.EndedBy(),
        estimate=lastword.Mean(),
        families={"all": Ratios(tuple(n / 10 for n in range(1, 20)))},
        made_with={},
    )


def test_a_calibration_takes_its_place_and_keeps_its_own_limit(silent):
    model = Unasked()
    model.calibration = calibration(model)
    plain = Survival(200, model.calibration.bound(0.9), interpretation=lastword.EndedBy())
    for length, sized in (
        (Calibrated(0.9), plain),
        (StopAtEnd(Calibrated(0.9)), StopAtEnd(plain)),
        (GrowWhenFull(Calibrated(0.9)), GrowWhenFull(plain, limit=200)),
    ):
        assert resolved(length, model) == sized
    assert resolved(Calibrated(0.9), model, available_slots=90) == replace(plain, limit=90)


# Lengths of one's own


@dataclass(frozen=True)
class Roomy(LengthPolicy):
    """Says how many slots it may come to."""

    traits = LengthTraits(max_slots=5000)

    def plan(self, probe):
        raise AssertionError("a plan was made")


@dataclass(frozen=True)
class Quiet(LengthPolicy):
    """Does not say how many slots it plans."""

    slots: int

    def plan(self, probe):
        return Plan(torch.full((probe.num_rows,), self.slots))


def test_a_length_of_one_s_own_is_held_to_what_it_says():
    with pytest.raises(CapacityError, match="horizon 5000"):
        resolved(Roomy(), prompts=[PROMPT])
    assert settled_quietly(Roomy(), prompts=[PROMPT], exceed_max_seq_len=True) == Roomy()


def test_one_that_does_not_say_is_refused_by_its_first_pass():
    with pytest.raises(CapacityError, match=r"horizon 3000 \+ prompt 3 exceeds"):
        next(lastword.decode(Unasked(), [PROMPT], Recipe(length=Quiet(3000))))
