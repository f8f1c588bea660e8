"""Each refusal says why and what to use instead, and what it advises works."""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lastword.decoding.loop import decode
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.models.storage import KVStorage
from lastword.policies.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.policies.commit import Prophet
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.reread import Reread
from lastword.policies.length.rho_eos import RhoEos
from lastword.policies.length.survival import Survival, SurvivalAtStep
from lastword.policies.length.wrappers import Budget, GrowWhenFull, StopAtEnd
from lastword.policies.unmask.rule import AtRandom, MostConfident, UnmaskRule, UnmaskTraits
from lastword.policies.unmask.slow_fast import SlowFast
from lastword.policies.unmask.stochastic import CoinFlip
from lastword.policies.unmask.threshold import AboveThreshold, LeftmostFirst
from lastword.recipe.recipe import Recipe, conflicts
from lastword.survival.distribution import Quantile

DAEDAL = Daedal(initial=8, limit=24, expansion_factor=4, eos_window=4)
RHO_EOS = RhoEos(initial=8, limit=24, expansion_factor=2)
SURVIVAL = Survival(16)
AT_STEP = SurvivalAtStep(3, SURVIVAL)


@dataclass(frozen=True)
class Refused:
    """Parts that do not go together, the words of the refusal, and its advice by the words that give it."""

    choices: dict[str, Any]
    words: str
    advice: dict[str, dict[str, Any]]


def instead(choices, **others):
    return {**choices, **others}


GROWN_TWICE = {"length": GrowWhenFull(DAEDAL, increment=4, limit=24)}
GROWN_TWICE_INSIDE = {"length": StopAtEnd(GrowWhenFull(RHO_EOS, increment=4, limit=24)), "block": 4}
GROWN_BY_TWO_OF_A_KIND = {"length": GrowWhenFull(GrowWhenFull(Fixed(6), increment=4, limit=24))}
NEVER_GROWN = {"length": StopAtEnd(GrowWhenFull(StopAtEnd(Fixed(24)), increment=4, limit=24)), "block": 4}


@dataclass(frozen=True)
class Idle(UnmaskRule):
    """May idle, as its schedule says, and does not say how long that takes."""

    traits = UnmaskTraits(follows_schedule=True)

    def choose(self, prediction, open, clock, state):
        return open, state


@dataclass(frozen=True)
class IdleCounted(Idle):
    def max_passes(self, masks):
        return 2 * masks


UNCOUNTED = {"length": Budget(Fixed(12), max_passes=9), "unmask": Idle()}
UNCOUNTED_INSIDE = {**UNCOUNTED, "length": StopAtEnd(UNCOUNTED["length"]), "block": 4} | {
    "unmask": LeftmostFirst(Idle())
}
UNSURE = {"length": DAEDAL, "unmask": AtRandom()}
UNSURE_INSIDE = {"length": StopAtEnd(RHO_EOS), "unmask": LeftmostFirst(CoinFlip()), "block": 4}
PAID_TWICE = {"length": Budget(RHO_EOS, max_passes=30)}
DROPPED = {"length": Fixed(12), "unmask": SlowFast(), "cache": DualCache(), "block": 4}
DROPPED_INSIDE = {"length": Fixed(12), "unmask": LeftmostFirst(SlowFast()), "cache": FeatureCache()}
LATE = {"length": AT_STEP, "cache": PrefixCache(), "block": 4}
LATE_INSIDE = {"length": StopAtEnd(AT_STEP), "cache": DualCache(), "block": 4}
LATE_DROPPED = {"length": AT_STEP, "unmask": SlowFast()}
AHEAD = {"length": StopAtEnd(Reread(SURVIVAL)), "cache": DualCache(), "block": 4}
AHEAD_DROPPED = {"length": Reread(SURVIVAL), "unmask": SlowFast(), "block": 4}
AHEAD_PLACED = {"length": Reread(SURVIVAL), "commit": Prophet(answer_start=4), "block": 4}
PLACED = {"length": DAEDAL, "commit": Prophet(answer_start=4)}
PLACED_LITERALS = {"length": GrowWhenFull(Fixed(8), limit=24), "commit": Prophet(literals=((-6, 9),))}
PLACED_CROPPED = {"length": StopAtEnd(RHO_EOS), "commit": Prophet(literals=((0, 9),)), "block": 4}
FOR_EVER = {"length": Fixed(9), "unmask": AboveThreshold(), "sampling": Sampling(propose_mask=True)}

REFUSED = {
    "two that grow": Refused(
        GROWN_TWICE,
        "GrowWhenFull was put around Daedal; both lengthen",
        {
            "use Daedal alone": {"length": DAEDAL},
            "GrowWhenFull around a policy that plans once, such as Survival()": {
                "length": GrowWhenFull(SURVIVAL, increment=4, limit=24)
            },
        },
    ),
    "two that grow, wrapped": Refused(
        GROWN_TWICE_INSIDE,
        "GrowWhenFull was put around RhoEos",
        {"use RhoEos alone": instead(GROWN_TWICE_INSIDE, length=StopAtEnd(RHO_EOS))},
    ),
    "two of a kind": Refused(
        GROWN_BY_TWO_OF_A_KIND,
        "GrowWhenFull was put around GrowWhenFull",
        {"use GrowWhenFull alone": {"length": GrowWhenFull(Fixed(6), increment=4, limit=24)}},
    ),
    "growth that never comes": Refused(
        NEVER_GROWN,
        "GrowWhenFull has a limit of 24 around a plan of 24 slots",
        {
            "raise the limit above 24": instead(NEVER_GROWN, length=GrowWhenFull(Fixed(24), increment=4, limit=28)),
            "plan fewer slots": instead(NEVER_GROWN, length=GrowWhenFull(Fixed(8), increment=4, limit=24)),
            "leave GrowWhenFull out": instead(NEVER_GROWN, length=StopAtEnd(Fixed(24))),
        },
    ),
    "confidence that means nothing": Refused(
        UNSURE,
        "Daedal was given with AtRandom; it resizes by the model's confidence",
        {
            "such as AboveThreshold()": instead(UNSURE, unmask=AboveThreshold()),
            "or Survival()": instead(UNSURE, length=SURVIVAL),
        },
    ),
    "confidence that means nothing, wrapped": Refused(
        UNSURE_INSIDE,
        "RhoEos was given with LeftmostFirst",
        {"such as AboveThreshold()": instead(UNSURE_INSIDE, unmask=AboveThreshold())},
    ),
    "work that is paid twice": Refused(
        PAID_TWICE,
        "Budget was put around RhoEos, which removes slots",
        {
            "use RhoEos alone": {"length": RHO_EOS},
            "such as Survival()": {"length": Budget(SURVIVAL, max_passes=30)},
            "or Reread()": {"length": Budget(Reread(SURVIVAL), max_passes=30), "block": 4},
        },
    ),
    "columns a cache would miss": Refused(
        DROPPED,
        "SlowFast was given with DualCache; SlowFast leaves columns out",
        {
            "use NoCache()": instead(DROPPED, cache=NoCache()),
            "such as AboveThreshold()": instead(DROPPED, unmask=AboveThreshold()),
        },
    ),
    "columns a cache would miss, wrapped": Refused(
        DROPPED_INSIDE,
        "LeftmostFirst was given with FeatureCache",
        {"use NoCache()": instead(DROPPED_INSIDE, cache=NoCache())},
    ),
    "a step that is not read": Refused(
        LATE,
        "SurvivalAtStep was given with PrefixCache; it predicts from one step",
        {
            "use NoCache()": instead(LATE, cache=NoCache()),
            "or FeatureCache()": instead(LATE, cache=FeatureCache()),
            "step 0, which reads all of it": instead(LATE, length=SurvivalAtStep(0, SURVIVAL)),
            "or Survival(), which probes": instead(LATE, length=SURVIVAL),
        },
    ),
    "a step that is not read, wrapped": Refused(
        LATE_INSIDE, "SurvivalAtStep was given with DualCache", {"use NoCache()": instead(LATE_INSIDE, cache=NoCache())}
    ),
    "a step that is not seen": Refused(
        LATE_DROPPED,
        "SurvivalAtStep was given with SlowFast",
        {
            "such as AboveThreshold()": instead(LATE_DROPPED, unmask=AboveThreshold()),
            "step 0, which reads all of it": instead(LATE_DROPPED, length=SurvivalAtStep(0, SURVIVAL)),
        },
    ),
    "slots ahead that are not read": Refused(
        AHEAD,
        "Reread was given with DualCache; it reads the slots behind a block",
        {
            "use PrefixCache()": instead(AHEAD, cache=PrefixCache()),
            "FeatureCache()": instead(AHEAD, cache=FeatureCache()),
            "or NoCache()": instead(AHEAD, cache=NoCache()),
            "or GrowWhenFull(Survival())": instead(AHEAD, length=GrowWhenFull(SURVIVAL, increment=4, limit=24)),
        },
    ),
    "slots ahead that are not seen": Refused(
        AHEAD_DROPPED,
        "Reread was given with SlowFast",
        {"such as AboveThreshold()": instead(AHEAD_DROPPED, unmask=AboveThreshold())},
    ),
    "places that move with what is read": Refused(
        AHEAD_PLACED,
        "Prophet was given slots at fixed indices .* with Reread",
        {"planned once, such as Survival()": instead(AHEAD_PLACED, length=SURVIVAL)},
    ),
    "places that move": Refused(
        PLACED,
        "Prophet was given slots at fixed indices .* with Daedal, which moves",
        {
            "count its region from the end (answer_start=-5)": instead(PLACED, commit=Prophet(answer_start=-5)),
            "planned once, such as Survival()": instead(PLACED, length=SURVIVAL),
        },
    ),
    "literals that move": Refused(
        PLACED_LITERALS,
        "Prophet was given slots at fixed indices .* with GrowWhenFull",
        {"leave out literals": instead(PLACED_LITERALS, commit=Prophet())},
    ),
    "literals that keep a crop from cutting": Refused(
        PLACED_CROPPED,
        "Prophet was given slots at fixed indices .* with RhoEos",
        {"leave out literals": instead(PLACED_CROPPED, commit=Prophet())},
    ),
    "passes that nobody counts": Refused(
        UNCOUNTED,
        "Budget was given with Idle, which follows a schedule and may idle",
        {
            "a method max_passes(masks)": instead(UNCOUNTED, unmask=IdleCounted()),
            "such as MostConfident()": instead(UNCOUNTED, unmask=MostConfident()),
        },
    ),
    "passes that nobody counts, further in": Refused(
        UNCOUNTED_INSIDE,
        "Budget was given with LeftmostFirst",
        {"a method max_passes(masks)": instead(UNCOUNTED_INSIDE, unmask=LeftmostFirst(IdleCounted()))},
    ),
    "masks that are refused for ever": Refused(
        FOR_EVER,
        "might wait forever",
        {
            "such as MostConfident()": instead(FOR_EVER, unmask=MostConfident()),
            "leave propose_mask out": instead(FOR_EVER, sampling=Sampling()),
        },
    ),
}


@pytest.mark.full
def test_what_does_not_go_together_is_refused_and_what_is_advised_works(llada):
    for name, refused in REFUSED.items():
        with pytest.raises(SettingError, match=refused.words) as raised:
            Recipe(**refused.choices)
        for words, choices in refused.advice.items():
            assert words in str(raised.value), name
            *_, last = decode(llada, [[5, 42, 17], [8]], Recipe(**choices))
            assert not last.canvas.masked.any(), f"{name}: {words}"


def lines_of(recipe):
    """The lines of `conflicts` that reject these parts."""
    found = conflicts(recipe)
    return {found.gi_frame.f_lineno for _ in found}


def test_every_refusal_has_a_case():
    lines = set()
    for refused in REFUSED.values():
        recipe = Recipe()
        for name, choice in {"length": SURVIVAL, **refused.choices}.items():
            object.__setattr__(recipe, name, choice)  # past the check
        lines |= lines_of(recipe)
    assert len(lines) == inspect.getsource(conflicts).count("yield (") == 10
    assert not lines_of(Recipe())


# Parts of a user's own are judged by what they say


@dataclass(frozen=True)
class Shortsighted(UnmaskRule):
    traits = UnmaskTraits(hides_columns=True)

    def choose(self, prediction, open, clock, state):
        return open, state


@dataclass(frozen=True)
class Hoarding(Cache):
    def create_storage(self, canvas):
        return KVStorage(*canvas.tokens.shape)

    def stale(self, canvas, clock):
        return canvas.valid


def test_a_part_of_ones_own_is_judged_by_what_it_says():
    with pytest.raises(SettingError, match="Shortsighted was given with Hoarding"):
        Recipe(unmask=Shortsighted(), cache=Hoarding())
    assert Recipe(unmask=Shortsighted(), cache=NoCache()).unmask == Shortsighted()
    assert Recipe(unmask=MostConfident(), cache=Hoarding()).cache == Hoarding()


# What goes together although it might seem not to


def test_growth_when_full_around_a_policy_that_plans_anew_repeats_nothing(llada):
    length = StopAtEnd(GrowWhenFull(Reread(SURVIVAL), increment=4, limit=24))
    *_, last = decode(llada, [[5, 42, 17], [8]], Recipe(length=length, block=4))
    assert not last.canvas.masked.any()


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()], ids=str)
def test_with_one_block_a_block_cache_keeps_the_prompt(cache, llada):
    """As Fast-dLLM's run of one block does (golden case f08)."""
    whole, later = 3 + 8, 8
    *_, last = decode(llada, [[5, 42, 17]], Recipe(length=Fixed(8), cache=cache, block=8))
    assert last.cost.tokens_computed.tolist() == [whole + 7 * later]


@pytest.mark.parametrize(
    "length",
    [
        Daedal(
            initial=8,
            limit=40,
            expansion_factor=3,
            eos_window=4,
            eos_threshold=0.0,
            expand_threshold=1.0,
            low_threshold=0.9,
        ),
        RhoEos(initial=8, limit=40, expansion_factor=1, scheduler="const", signal="released"),
        RhoEos(initial=8, limit=40, expansion_factor=1, scheduler="const"),
    ],
    ids=str,
)
@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()], ids=str)
def test_under_a_block_cache_a_row_is_resized_where_the_block_opens(cache, length, llada):
    """There the pass reads the whole answer; the pass after a resize computes all of it again."""
    recipe = Recipe(length=length, unmask=AboveThreshold(0.9), cache=cache, block=4)
    resized, left_alone, changed = 0, 0, torch.zeros(1, dtype=torch.bool)
    for step in decode(llada, [[5, 42, 17]], recipe):
        canvas, columns = step.prediction.canvas, step.prediction.columns.index
        if changed.any():
            fresh = llada(canvas.tokens, columns)
            torch.testing.assert_close(step.prediction.logits, fresh, atol=1e-4, rtol=0)
        changed = step.canvas.horizon != canvas.horizon
        assert not (changed & ~step.clock.block_start).any()
        resized += int(changed.sum())
        left_alone += int((~step.clock.block_start).sum())
    assert resized > 2
    assert left_alone > 0


@dataclass(frozen=True)
class Late(RhoEos):
    """Wants to grow in every pass but those that open a block."""

    def revise(self, canvas, prediction, clock, state):
        if bool(clock.block_start.all()):
            return canvas, state
        return super().revise(canvas, prediction, clock, state)


@pytest.mark.parametrize(
    ("cache", "grows"),
    [(PrefixCache(), False), (DualCache(), False), (FeatureCache(), True), (NoCache(), True)],
    ids=str,
)
def test_under_a_block_cache_no_row_is_resized_within_a_block(cache, grows, llada):
    length = Late(initial=8, limit=12, rho_low=0.9, rho_high=1.0, expansion_factor=1, scheduler="const")
    *_, last = decode(llada, [[5, 42, 17]], Recipe(length=length, cache=cache, block=4))
    assert (last.canvas.horizon > 8).tolist() == [grows]


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache(), FeatureCache()], ids=str)
def test_step_0_reads_the_same_under_any_cache(cache, llada):
    length = SurvivalAtStep(0, Survival(16, Quantile(0.01)))
    plain, cached = (next(decode(llada, [[5, 42, 17]], Recipe(length, cache=c, block=4))) for c in (NoCache(), cache))
    assert plain.canvas.horizon.tolist() == cached.canvas.horizon.tolist() != [16]


def test_a_region_from_the_end_is_none_of_the_end_tokens_daedal_writes(llada):
    """They are certain before the first pass: on them every answer would seem decided."""
    rule = Prophet(answer_start=-3, answer_length=3)
    length = Daedal(initial=8, limit=24, expansion_factor=4, eos_window=4, eos_threshold=0.0)
    recipe = Recipe(length=length, commit=rule)
    step = next(decode(llada, [[5, 42, 17]], recipe))
    canvas = step.prediction.canvas
    assert canvas.suffix.tolist() == [2]
    region = rule.span(canvas)[0].nonzero()[:, 0]
    assert region.tolist() == list(range(canvas.width - 5, canvas.width - 2))
    assert not torch.isin(canvas.tokens[0, region], torch.tensor(canvas.ids.ends)).any()
