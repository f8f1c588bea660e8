"""Every part beside every other, on both families: it works, or the recipe is refused.

By default each *pair* of choices meets in some recipe, which runs on both families, or in none
whatever the rest: a covering array, found greedily. With `-m full` a length also meets every pair of other choices.

In each recipe of the array a row is also run alone, on one family and the other and one row and the other in
turn: a row of a batch equals its solo run, whatever two parts are at work.
"""

import random
from functools import cache
from itertools import combinations, product

import pytest
import torch

import lastword
from lastword.calibration import Ratios
from lastword.models.weights import model_key
from lastword.prompts import tokenize_prompts
from lastword.recipe.registry import PARTS
from tests.laws.axes import recipe_of

FAMILIES = ["tiny-llada-base", "tiny-dream-base"]
PROMPTS = ["Calculate 3 + 4.", "def add(a, b):\n    return a +"]
LIMIT = 20

SHARES, TIMES = lastword.EqualShares(5.0), lastword.Timesteps(5.0)
AXES = {
    "length": [
        lastword.Fixed(16),
        lastword.Survival(16),
        lastword.SurvivalAtStep(1, lastword.Survival(16)),
        lastword.Reread(lastword.Survival(16)),
        lastword.Calibrated(0.8),
        lastword.Secant(16, 8, tolerance=2, interpretation=lastword.TurnEnd()),
        lastword.Budget(lastword.Survival(16), max_passes=10),
        lastword.StopAtEnd(lastword.Fixed(16)),
        lastword.GrowWhenFull(lastword.Survival(12), increment=8, limit=LIMIT),
        lastword.StopAtEnd(
            lastword.Daedal(initial=8, limit=LIMIT, expansion_factor=8, eos_window=8, low_threshold=0.4)
        ),
        lastword.Daedal(
            initial=12, limit=LIMIT, expansion_factor=4, eos_window=8, eos_threshold=0.3, low_threshold=0.4
        ),
        lastword.RhoEos(initial=12, limit=LIMIT, expansion_factor=2),
    ],
    "unmask": [
        lastword.MostConfident(SHARES),
        lastword.LargestMargin(TIMES),
        lastword.LowestEntropy(lastword.Cosine(5.0), order_temperature=0.3),
        lastword.AtRandom(SHARES),
        lastword.CoinFlip(TIMES),
        lastword.MaskGit(lastword.Cosine(5.0)),
        lastword.AboveThreshold(0.4, max_tokens_per_step=4.0),
        lastword.Factor(2.0),
        lastword.EntropyBound(3.0),
        lastword.SlowFast(high_confidence=0.3, min_confidence=0.2, exploration_steps=3),
        lastword.LeftmostFirst(lastword.AboveThreshold(0.3)),
    ],
    "commit": [
        lastword.Never(),
        lastword.Prophet(early_threshold=6.0, middle_threshold=3.0, late_threshold=1.5),
        lastword.Prophet(
            early_threshold=6.0, middle_threshold=3.0, late_threshold=1.5, answer_start=4, literals=((2, 17),)
        ),
        lastword.StableMargin("margin", start_threshold=4.0, end_threshold=0.5),
    ],
    "cache": [lastword.NoCache(), lastword.PrefixCache(), lastword.DualCache(), lastword.FeatureCache(6, 3, 0.3)],
    "block": [None, 8],
}
for axis in ("unmask", "commit", "cache"):  # what is new, as it comes
    known = {type(value) for value in AXES[axis]}
    AXES[axis] += [part() for part in PARTS[axis].values() if part not in known]
PLACED = AXES["commit"][2]

# The pairs no recipe holds, whatever the rest of it. Everything else runs.
REFUSED_PAIRS = {
    *(("SlowFast", cache) for cache in ("PrefixCache", "DualCache", "FeatureCache")),
    *(("SurvivalAtStep", other) for other in ("PrefixCache", "DualCache", "SlowFast")),
    *(("Reread", other) for other in ("DualCache", "SlowFast", "Prophet, placed")),
    *((moving, "Prophet, placed") for moving in ("SurvivalAtStep", "GrowWhenFull", "Daedal")),
    *((moving, "Prophet, placed") for moving in ("StopAtEnd(Daedal)", "RhoEos")),
    *product(("Daedal", "StopAtEnd(Daedal)", "RhoEos"), ("AtRandom", "CoinFlip")),
}


def recipe_in(choices):
    return recipe_of(**{axis: value for axis, value in choices.items() if axis != "family"})


def pairs_in(choices):
    """Pairs of (axis, place) that a choice of values makes, in the order of the axes."""
    picked = [(axis, choices[axis]) for axis in AXES if axis in choices]
    return set(combinations([(axis, AXES[axis].index(value)) for axis, value in picked], 2))


def completed(choices, wanted):
    """The choices with the rest added, for as many wanted pairs as greed finds; None if refused."""
    axis = next((axis for axis in AXES if axis not in choices), None)
    if axis is None:
        return choices if recipe_in(choices) else None
    by_gain = sorted(
        ({**choices, axis: value} for value in AXES[axis]),
        key=lambda more: -len(pairs_in(more) & wanted),  # of equals, the first
    )
    found = (completed(more, wanted) for more in by_gain)
    return next((choices for choices in found if choices is not None), None)


@cache
def covering():
    """Choices in which every pair occurs that occurs in any recipe, and the pairs that do not."""
    places = {axis: range(len(values)) for axis, values in AXES.items()}
    wanted = [
        ((one, i), (other, j)) for one, other in combinations(AXES, 2) for i, j in product(places[one], places[other])
    ]
    array, refused, left = [], [], set(wanted)
    for pair in wanted:
        if pair in left:
            choices = completed({axis: AXES[axis][place] for axis, place in pair}, left)
            (refused if choices is None else array).append(choices or pair)
            left -= {pair} if choices is None else pairs_in(choices)
    return array, refused


# The family is no axis of the array: there most pairs would meet on one family alone.
RUNS = [{**choices, "family": family} for choices in covering()[0] for family in FAMILIES]
ALONE = [place for place in range(len(RUNS)) if place % 4 in (0, 3)]  # each recipe once
OTHERS = [place for place in range(len(RUNS)) if place not in ALONE]


def name_of(axis, place):
    value = AXES[axis][place]
    if value is PLACED:
        return "Prophet, placed"
    inner = getattr(value, "length", None)
    wraps_daedal = isinstance(inner, lastword.Daedal)
    name = str(value) if axis == "block" else type(value).__name__
    return f"{name}(Daedal)" if wraps_daedal else name


@cache
def model(family):
    loaded = lastword.load(family, device="cpu")
    loaded.calibration = lastword.Calibration(
        model_key=model_key(loaded),
        limit=16,
        interpretation=lastword.Auto(),
        estimate=lastword.Quantile(0.5),
        families={"all": Ratios((0.7, 0.8, 0.9, 1.1))},
    )
    return loaded


@cache
def batch(family):
    return [list(ids) for ids in tokenize_prompts(model(family), PROMPTS)]


def check_run(choices):
    """Decode to the end and hold every pass against what must be true of any; the last step."""
    recipe, family = recipe_in(choices), choices["family"]
    prompts = batch(family)
    spent = None
    for step in lastword.decode(model(family), prompts, recipe):
        assert (step.clock.step < 6 * LIMIT).all(), "it does not seem to end"
        canvas, read = step.canvas, step.prediction.canvas
        for row, prompt in enumerate(prompts):
            assert canvas.tokens[row, canvas.start - len(prompt) : canvas.start].tolist() == prompt
        assert (canvas.horizon <= LIMIT).all()
        now = torch.stack((step.cost.forward_passes, step.cost.tokens_computed, step.cost.attention_pairs))
        passes, columns, squares = now if spent is None else now - spent
        width, took_part = read.valid.sum(-1), read.masked.any(-1)
        assert torch.equal(passes, took_part.long())
        assert (columns <= passes * width).all()
        assert (columns[took_part] > 0).all()
        assert (squares <= columns * width).all()
        if not recipe.cache.traits.stores_states and not recipe.unmask.traits.hides_columns:
            assert torch.equal(columns, passes * width)
            assert torch.equal(squares, columns * width)
        spent = now
    assert not canvas.masked.any()
    assert not (canvas.tokens == canvas.ids.mask).any()
    return step


def label(place):
    choices = RUNS[place]
    names = [name_of(axis, AXES[axis].index(choices[axis])) for axis in AXES]
    return "-".join([*names, choices["family"]])


def test_every_part_takes_part_in_the_cross():
    def inside(value):
        yield type(value)
        for field in ("length", "unmask", "schedule"):
            if hasattr(value, field):
                yield from inside(getattr(value, field))

    crossed = {kind for values in AXES.values() for value in values for kind in inside(value)}
    for axis in ("length", "unmask", "commit", "cache", "schedule"):
        assert set(PARTS[axis].values()) <= crossed


def test_the_array_covers_every_pair():
    array, refused = covering()
    met = set().union(*map(pairs_in, array))
    places = {axis: range(len(values)) for axis, values in AXES.items()}
    for one, other in combinations(AXES, 2):
        for i, j in product(places[one], places[other]):
            pair = ((one, i), (other, j))
            assert (pair in met) != (pair in refused)
    assert len(array) < 1.5 * len(AXES["length"]) * len(AXES["unmask"])


def test_the_pairs_that_are_refused_are_these():
    _, refused = covering()
    assert {(name_of(*one), name_of(*other)) for one, other in refused} == REFUSED_PAIRS


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_that_is_not_refused_runs_on_each_family(family):
    """Counted from the list by hand, not from what the search for the array made of it."""
    met = set().union(*(pairs_in(choices) for choices in RUNS if choices["family"] == family))
    possible = sum(len(AXES[one]) * len(AXES[other]) for one, other in combinations(AXES, 2))
    assert len(met) == possible - len(REFUSED_PAIRS)
    assert not {(name_of(*one), name_of(*other)) for one, other in met} & REFUSED_PAIRS


@pytest.mark.parametrize("place", OTHERS, ids=label)
def test_every_pair_of_parts_works(place):
    check_run(RUNS[place])


@pytest.mark.usefixtures("unchecked")  # the shapes of each recipe are checked on the other family
@pytest.mark.parametrize("place", ALONE, ids=label)
def test_every_pair_of_parts_works_and_a_row_equals_its_solo_run(place):
    choices, row = RUNS[place], place // 4 % 2
    together, family = check_run(choices), choices["family"]
    dice, prompt = lastword.RowGenerators([row]), batch(family)[row]
    *_, alone = lastword.decode(model(family), [prompt], recipe_in(choices), generators=dice)
    assert together.canvas.answer_ids(row) == alone.canvas.answer_ids(0)
    assert together.plan.horizon[row] == alone.plan.horizon[0]
    assert together.cost.row(row) == alone.cost.row(0)
    assert together.probe_cost.row(row) == alone.probe_cost.row(0)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", AXES["length"], ids=str)
def test_a_length_works_beside_every_pair_of_other_parts(family, length):
    """In a random order, each recipe runs in which two parts meet for the first time."""
    every = [dict(zip(AXES, values)) for values in product(*(AXES | {"length": [length]}).values())]
    random.Random(f"{length} {family}").shuffle(every)
    met = set()
    for choices in every:
        if not pairs_in(choices) <= met and recipe_in(choices):
            check_run(choices | {"family": family})
            met |= pairs_in(choices)
