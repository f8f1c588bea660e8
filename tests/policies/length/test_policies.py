from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import dataclass

import pytest
import torch

import lastword
from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs, TokenCost
from lastword.decoding.running_batch import ModelProbe
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import CapacityError, SettingError
from lastword.models.toy import Toy
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthTraits
from lastword.policies.length.reread import Reread
from lastword.policies.length.rho_eos import RhoEos
from lastword.policies.length.secant import Secant
from lastword.policies.length.survival import Survival, SurvivalAtStep
from lastword.policies.length.wrappers import Budget, GrowWhenFull, StopAtEnd, combined_traits, policy_layers
from lastword.survival.distribution import Mean, Quantile
from lastword.survival.interpretation import Auto, Boundary, EndedBy, Hazard, TurnEnd

POLICIES = [
    Fixed(7),
    Survival(50),
    Survival(50, Quantile(0.9)),
    Survival(50, ends="any"),
    Survival(50, interpretation=Auto()),
    Survival(50, interpretation=TurnEnd()),
    Survival(1),
    Fixed(1),
    StopAtEnd(Survival(50)),
    GrowWhenFull(Survival(50), limit=60),
    SurvivalAtStep(3, Survival(50)),
    Reread(Survival(50)),
    Budget(Survival(50), max_passes=20),
    Secant(60, 9, target_probability=0.3),
    GrowWhenFull(Secant(60, 20, max_probes=2, target_probability=0.2, interpretation=Hazard()), limit=60),
    Budget(Daedal(initial=4, limit=60, eos_window=4), max_passes=40, max_tokens_computed=900),
    SurvivalAtStep(3, Survival(50, interpretation=EndedBy())),
    Daedal(initial=4, limit=60, eos_window=4, eos_threshold=0.01),
    RhoEos(initial=9, limit=60),
]


class CountingProbe(ModelProbe):
    def __init__(self, model, prompts, **settings):
        super().__init__(model, prompts, **settings)
        self.asked = []

    def __call__(self, slots, rows=None):
        self.asked.append(slots)
        return super().__call__(slots, rows)


def test_a_plan_has_a_whole_number_of_slots_per_row(toy):
    for policy in POLICIES:
        plan = policy.plan(CountingProbe(toy, [[1, 2, 3], [4]]))
        assert (plan.horizon.dtype, plan.horizon.shape) == (torch.long, (2,)), policy
        assert plan.horizon.min() >= 1, policy


def test_a_row_is_planned_as_if_alone(llada):
    prompts = [[5, 42, 17], [9], [100, 63, 7, 7, 21]]
    for policy in POLICIES:
        together = policy.plan(CountingProbe(llada, prompts)).horizon
        alone = [policy.plan(CountingProbe(llada, [prompt])).horizon.item() for prompt in prompts]
        assert together.tolist() == alone, policy


def test_a_policy_is_plain_data():
    for policy in POLICIES:
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_fixed_never_probes(toy):
    probe = CountingProbe(toy, [[1], [2, 3]])
    plan = Fixed(9).plan(probe)
    assert plan.horizon.tolist() == [9, 9]
    assert plan.lengths is None
    assert probe.asked == []
    assert probe.cost.row(0).forward_passes == 0


def test_survival_probes_once_over_its_limit(toy):
    probe = CountingProbe(toy, [[1], [2, 3]])
    Survival(20).plan(probe)
    assert probe.asked == [20]
    assert probe.cost.row(1) == TokenCost(1, 22, 22**2)


@pytest.mark.parametrize("hazard", [0.5, 0.25, 0.05])
def test_survival_plans_the_ceiling_of_the_expected_length(hazard):
    plan = Survival(30).plan(CountingProbe(Toy(hazard), [[1, 2]]))
    expected = (1 - (1 - hazard) ** 30) / hazard
    assert plan.lengths.mean.item() == pytest.approx(expected)
    assert plan.horizon.item() == math.ceil(expected)


def test_survival_with_no_end_in_sight_plans_its_limit():
    assert Survival(30).plan(CountingProbe(Toy(0.0), [[1]])).horizon.item() == 30


def test_survival_plans_for_the_estimate_it_is_given():
    probe = CountingProbe(Toy(0.5), [[1]])
    assert Survival(30, Quantile(0.9)).plan(probe).horizon.item() == 4
    assert Survival(30, Mean()).plan(probe).horizon.item() == 2


def test_survival_plans_by_the_reading_it_is_given():
    probe = CountingProbe(Toy(0.05), [[1]])
    plan = Survival(30, interpretation=Boundary()).plan(probe)
    assert plan.lengths.mean.item() == pytest.approx(10.5)  # 20 slots of 0.05 each
    assert plan.horizon.item() == 11
    assert probe.asked == [30]  # a reading costs no pass


def test_the_signal_keeps_the_two_ends_apart_unless_asked_to_add_them(golden):
    import lastword

    model = lastword.load(golden / "llada-tiny", device="cpu", turn_ends=(380,))
    prediction = CountingProbe(model, [[5, 42, 17]])(40)
    apart, merged = Survival(40).signal(prediction), Survival(40, ends="any").signal(prediction)
    assert (apart.turn > 0).all()
    assert torch.equal(apart.either_end, merged.document)
    assert merged.turn.sum() == 0
    assert apart.text_slots.tolist() == [0]


def test_the_turn_end_counts_only_where_asked(golden):
    import lastword

    model = lastword.load(golden / "llada-tiny", device="cpu", turn_ends=(380,))
    probe = CountingProbe(model, [[5, 42, 17]])
    document = Survival(40).plan(probe).lengths
    both = Survival(40, ends="any").plan(probe).lengths
    assert (both.hazard > document.hazard).all()
    assert both.mean < document.mean


def test_a_probe_beyond_the_models_positions_is_refused_unless_allowed(llada):
    with pytest.raises(CapacityError, match=r"horizon 94 \+ prompt 3 exceeds .* 96 positions.* 93"):
        Survival(94).plan(CountingProbe(llada, [[1, 2, 3]]))
    assert Survival(94).plan(CountingProbe(llada, [[1, 2, 3]], exceed_max_seq_len=True)).horizon > 0
    assert Survival(93).plan(CountingProbe(llada, [[1, 2, 3]])).horizon > 0


def test_a_policy_says_when_it_and_what_it_wraps_resize():
    for policy, own, together in (
        (Fixed(7), "never", "never"),
        (Survival(), "never", "never"),
        (StopAtEnd(Fixed(7)), "between blocks", "between blocks"),
        (GrowWhenFull(StopAtEnd()), "between blocks", "between blocks"),
        (SurvivalAtStep(), "any time", "any time"),
        (Daedal(), "any time", "any time"),
        (StopAtEnd(Daedal()), "between blocks", "any time"),
        (Budget(GrowWhenFull(RhoEos()), max_passes=9), "never", "any time"),
    ):
        assert policy.traits.resizes == own, policy
        assert combined_traits(policy).resizes == together, policy


def test_traits_add_up_over_what_is_wrapped():
    policy = StopAtEnd(GrowWhenFull(Budget(Reread(Survival(48)), max_passes=9), limit=96))
    assert [type(layer) for layer in policy_layers(policy)] == [StopAtEnd, GrowWhenFull, Budget, Reread]
    assert combined_traits(policy) == LengthTraits(
        resizes="between blocks",
        reads="ahead",
        grows=True,
        replans=True,
        bounds_cost=True,
        needs_blocks=True,
        max_slots=96,
    )
    assert combined_traits(StopAtEnd(Fixed(48))).min_slots == 48
    assert combined_traits(StopAtEnd(Fixed(48))).max_slots is None


def test_a_policy_that_plans_before_it_is_settled_says_so(toy):
    for policy in (
        Fixed(),
        Survival(),
        Secant(),
        Daedal(),
        RhoEos(),
        SurvivalAtStep(),
        Reread(),
        StopAtEnd(GrowWhenFull(Survival(interpretation=Auto()))),
        Daedal(initial=8),
        Secant(initial=8),
    ):
        probe = CountingProbe(toy, [[1]])
        with pytest.raises(SettingError, match="before it was resolved for a model"):
            policy.plan(probe)
        assert probe.asked == [], policy


@pytest.mark.parametrize(
    "policy",
    [
        Daedal(initial=8, limit=24, expansion_factor=4, eos_window=4, expand_threshold=1.0, low_threshold=1.0),
        RhoEos(initial=8, limit=24),
        RhoEos(initial=8, limit=24, signal="released"),
        SurvivalAtStep(0, Survival(8, Quantile(0.001))),
    ],
    ids=str,
)
def test_a_policy_that_reads_the_answer_waits_for_a_pass_that_does(policy, llada):
    canvas = Canvas.blank([[5, 42, 17]], torch.tensor([8]), llada.ids)
    clock, forward = (Clock.start(canvas).tick(canvas, 4), Forward(llada, Sampling(), RowGenerators([0])))
    block = clock.window.columns(canvas.width)
    horizons = [
        policy.revise(canvas, forward(canvas, PassInputs(Columns.from_mask(read)), BatchCost.zeros(1))[0], clock, ())[
            0
        ].horizon.tolist()
        for read in (block, canvas.answer)
    ]
    assert horizons[0] == [8] != horizons[1]


@pytest.mark.parametrize("slots", [0, -3])
def test_no_slots_are_refused(slots):
    with pytest.raises(SettingError, match=rf"Fixed.*{slots}"):
        Fixed(slots)
    with pytest.raises(SettingError, match=rf"Survival.*{slots}"):
        Survival(slots)


WRONG = [
    "lastword.Survival(ends='both')",
    "lastword.Survival(estimate=5)",
    "lastword.Survival(estimate=lastword.Mean)",
    "lastword.Survival(limit=12.5)",
    "lastword.Survival(interpretation='boundary')",
    "lastword.Survival(ends='any', interpretation=lastword.TurnEnd())",
    "lastword.Fixed(2.5)",
    "lastword.Fixed(True)",
    "lastword.Fixed('12')",
    "lastword.StopAtEnd('fixed')",
    "lastword.GrowWhenFull('fixed')",
    "lastword.GrowWhenFull(increment=0)",
    "lastword.GrowWhenFull(limit=2.5)",
    "lastword.SurvivalAtStep(-1)",
    "lastword.SurvivalAtStep(5, lastword.Fixed(9))",
    "lastword.Daedal(initial=65, limit=64)",
    "lastword.Daedal(eos_window=0)",
    "lastword.Daedal(expansion_factor=1.5)",
    "lastword.Daedal(eos_threshold=1.5)",
    "lastword.Daedal(low_threshold='low')",
    "lastword.RhoEos(initial=65, limit=64)",
    "lastword.RhoEos(rho_low=0.7, rho_high=0.6)",
    "lastword.RhoEos(scheduler='fast')",
    "lastword.RhoEos(signal='eos')",
    "lastword.RhoEos(max_adjust_steps=-1)",
]


def test_values_of_the_wrong_kind_are_refused_when_the_policy_is_made(in_plain_python):
    outcome = in_plain_python(WRONG)
    assert outcome == dict.fromkeys(WRONG, "SettingError")


@dataclass(frozen=True)
class Inserts(lastword.Fixed):
    """A policy that inserts a mask before the answer after every pass."""

    traits = LengthTraits(max_slots=40, reads="answer", resizes="any time")

    def revise(self, canvas, prediction, clock, state):
        return canvas.insert_masks(
            torch.full_like(canvas.horizon, canvas.start), torch.ones_like(canvas.horizon)
        ), state


def test_a_row_at_its_cap_does_not_lose_tokens_to_insertions():
    model = lastword.load("toy")
    steps = lastword.decode(model, [[1, 2, 3], [4]], lastword.Recipe(length=Inserts(4)), max_new_tokens=[6, 9])
    *_, last = itertools.islice(steps, 30)
    assert last.canvas.horizon.tolist() == [6, 9]
    assert not last.canvas.masked.any()
