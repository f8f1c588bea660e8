from __future__ import annotations

import dataclasses
import json
import pickle
from dataclasses import dataclass

import pytest

import lastword
from lastword.decoding.sampling import Sampling
from lastword.errors import LastwordError, RecipeError, SettingError
from lastword.policies.cache import Cache, DualCache, FeatureCache, PrefixCache
from lastword.policies.commit import CommitRule, Prophet
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.survival import Calibrated, Survival
from lastword.policies.length.wrappers import Budget, GrowWhenFull, StopAtEnd, combined_traits
from lastword.policies.unmask.rule import LowestEntropy, MostConfident, UnmaskRule
from lastword.policies.unmask.schedule import EqualShares, Schedule, Timesteps
from lastword.policies.unmask.stochastic import CoinFlip
from lastword.policies.unmask.threshold import AboveThreshold, LeftmostFirst
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import ALIASES, DEFAULT_RECIPE, PARTS, RECIPES as NAMED, default_length
from lastword.recipe.resolve import resolve
from lastword.recipe.text import FIELD_ALIASES, from_data, parse_part, to_data, to_text
from lastword.survival.distribution import Mean, Quantile, Scaled
from lastword.survival.interpretation import Auto, Boundary, Interpretation, TurnEnd

RECIPES = [
    Recipe(),
    Recipe(length=Fixed(277), block=32),
    Recipe(length=Survival(512, Quantile(0.9), ends="any")),
    Recipe(length=Survival(512, interpretation=TurnEnd())),
    Recipe(length=Survival(512, Scaled(1.2, Quantile(0.9)))),
    Recipe(unmask=LowestEntropy(Timesteps(2.0, eps=0.01, keep_idle=True), order_temperature=0.3)),
    Recipe(unmask=CoinFlip(Timesteps(0.5))),
    Recipe(unmask=LeftmostFirst(AboveThreshold(0.8)), cache=FeatureCache(50, 7, 0.25)),
    Recipe(sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5, score="draw", guidance=1.5)),
]
AXES = ["length", "unmask", "commit", "cache", "sampling"]


def test_a_recipe_survives_json():
    for recipe in RECIPES:
        assert Recipe.from_json(recipe.to_json()) == recipe


def parts_by_name():
    return {name: cls for parts in PARTS.values() for name, cls in parts.items()}


OLD_FIELDS = [
    (name, old, field.name)
    for old, present in FIELD_ALIASES.items()
    for name, cls in parts_by_name().items()
    for field in dataclasses.fields(cls)
    if field.name in present
]


def test_every_old_field_name_belongs_to_a_part():
    assert {old for _, old, _ in OLD_FIELDS} == set(FIELD_ALIASES)


@pytest.mark.parametrize(("name", "old", "new"), OLD_FIELDS)
def test_a_field_name_of_before_is_read_and_not_written(name, old, new):
    cls = parts_by_name()[name]
    axis = next(axis for axis, parts in PARTS.items() if cls in parts.values())
    default = {f.name: f.default for f in dataclasses.fields(cls)}[new]
    made = cls(**{new: default if default is not None else 40 if name == "budget" else 2.0})
    written = to_data(made)
    assert new in written
    assert old not in written
    assert from_data(axis, {old if key == new else key: value for key, value in written.items()}) == made
    text = to_text(getattr(made, new))
    assert parse_part(axis, f"{name}:{old}={text}") == parse_part(axis, f"{name}:{new}={text}")
    with pytest.raises(RecipeError, match="twice"):
        parse_part(axis, f"{name}:{old}={text},{new}={text}")
    with pytest.raises(RecipeError, match="twice"):
        from_data(axis, written | {old: written[new]})


def test_every_part_survives_json_and_has_a_text_form():
    for axis in AXES:
        for name, cls in PARTS[axis].items():
            bound = {"max_passes": 40} if cls is Budget else {}  # the one part that needs a setting
            made, text = cls(**bound), f"{name}:max_passes=40" if bound else name
            recipe = Recipe(**{axis: made}, block=8)
            assert Recipe.from_json(recipe.to_json()) == recipe, name
            assert parse_part(axis, text) == made, name
            assert to_text(made) == text


def test_every_part_says_what_it_is_what_it_costs_and_where_it_is_from():
    every = {name: cls for parts in PARTS.values() for name, cls in parts.items()}
    for name, cls in every.items():
        assert vars(cls)["name"] == name
        for attribute in ("cost_summary", "source"):
            defined = next(base for base in cls.__mro__ if attribute in vars(base))
            assert defined is cls or defined not in every.values(), (name, attribute)  # not of another part
            assert 0 < len(getattr(cls, attribute)) < 90, (name, attribute)
        assert len(vars(cls)["__doc__"].splitlines()[0]) > 10, name


def test_every_public_part_has_its_name_in_the_table():
    assert list(PARTS) == [*AXES, "schedule", "estimate", "interpretation"]
    kinds = {
        "length": LengthPolicy,
        "unmask": UnmaskRule,
        "commit": CommitRule,
        "cache": Cache,
        "schedule": Schedule,
        "interpretation": Interpretation,
    }
    public = [getattr(lastword, name) for name in lastword.__all__]
    for axis, kind in kinds.items():
        parts = {c for c in public if isinstance(c, type) and issubclass(c, kind) and hasattr(c, "name")}
        assert {*PARTS[axis].values()} == {cls for cls in parts if vars(cls).get("name")}


def test_a_recipe_is_one_line_of_readable_json():
    text = Recipe(length=Survival(512, Quantile(0.9))).to_json()
    assert "\n" not in text
    data = json.loads(text)
    assert data["length"]["name"] == "survival"
    assert data["length"]["estimate"] == {"name": "quantile", "q": 0.9}


def test_json_may_leave_things_out_and_write_parts_as_text():
    recipe = Recipe.from_json('{"length": "fixed:64", "sampling": {"temperature": 0.5}}')
    assert recipe == Recipe(length=Fixed(64), sampling=Sampling(temperature=0.5))
    assert Recipe.from_json("{}") == Recipe()


def test_a_recipe_is_plain_data():
    for recipe in RECIPES:
        assert pickle.loads(pickle.dumps(recipe)) == recipe
        assert hash(recipe) == hash(pickle.loads(pickle.dumps(recipe)))


TEXT_FORMS = (
    ("length", "fixed:256", Fixed(256)),
    ("length", "fixed:slots=256", Fixed(256)),
    ("length", "survival", Survival()),
    ("length", "survival:512", Survival(512)),
    ("length", "survival:512,estimate=quantile:0.9", Survival(512, Quantile(0.9))),
    ("length", "survival:ends=any,estimate=mean", Survival(estimate=Mean(), ends="any")),
    ("length", "survival:256,interpretation=boundary", Survival(256, interpretation=Boundary())),
    ("length", "survival:interpretation=auto", Survival(interpretation=Auto())),
    ("unmask", "most-confident:timesteps:2.0", MostConfident(Timesteps(2.0))),
    ("unmask", "most-confident:order_temperature=0.5", MostConfident(order_temperature=0.5)),
    ("unmask", "most-confident:schedule=equal-shares:4.0", MostConfident(EqualShares(4.0))),
    ("unmask", "leftmost-first:threshold:0.8", LeftmostFirst(AboveThreshold(0.8))),
    ("cache", "feature:25,response_interval=5,share=0.25", FeatureCache(25, 5, 0.25)),
    ("sampling", "sampling:0.5,top_k=3", Sampling(temperature=0.5, top_k=3)),
    ("length", 'calibrated:0.8,family="a,b"', Calibrated(0.8, "a,b")),
    ("cache", "dual:0", DualCache(0)),
    ("cache", "prefix:prompt_every=4", PrefixCache(4)),
    ("length", "stop-at-end:survival:ends=any", StopAtEnd(Survival(ends="any"))),
    ("length", "default", default_length()),
    ("length", "default:512", default_length(512)),
    ("length", "default:limit=512", default_length(512)),
    ("length", "budget:(default:512),passes=40", Budget(default_length(512), max_passes=40)),
    (
        "length",
        "stop-at-end:(grow-when-full:(survival:64,interpretation=auto),by=8)",
        StopAtEnd(GrowWhenFull(Survival(64, interpretation=Auto()), increment=8)),
    ),
    (
        "length",
        "survival:64,estimate=(scaled:1.2,estimate=quantile:0.9,margin=16),ends=any",
        Survival(64, Scaled(1.2, Quantile(0.9), 16), "any"),
    ),
    (
        "commit",
        "prophet:literals=[[-8,21],[-7,56]],answer_start=-6",
        Prophet(literals=((-8, 21), (-7, 56)), answer_start=-6),
    ),
)


def test_text_forms():
    for axis, text, made in TEXT_FORMS:
        assert parse_part(axis, text) == made, text


def test_any_name_goes_through_text_and_back():
    for family in ("a,b", "a)b", "(", '"', 'say "a, b"', "\\", "12", "a=b:c", "é"):
        plain = Calibrated(0.8, family)
        for made in (plain, StopAtEnd(GrowWhenFull(plain, increment=8))):
            assert parse_part("length", to_text(made)) == made, family


def test_a_part_of_one_s_own_is_labelled_by_its_class():
    class Mine(Fixed):
        pass

    one = MostConfident()
    assert Recipe(Mine(3), one).label() == "Mine"
    assert Recipe(StopAtEnd(Mine(3)), one, block=8).label() == "stop-at-end:Mine, block 8"


def test_the_fields_own_names_suggest_ours():
    for ours, theirs in [(ours, alias) for ours, aliases in ALIASES.items() for alias in aliases]:
        axis = next(axis for axis, parts in PARTS.items() if ours in parts)
        for spelling in (theirs, theirs.upper(), theirs.replace("_", "-")):
            with pytest.raises(RecipeError, match=f"did you mean '{ours}'"):
                parse_part(axis, spelling)


def test_a_slip_suggests_the_nearest_name():
    for axis, wrong, ours in (
        ("unmask", "most_confident", "most-confident"),
        ("unmask", "MostConfident", "most-confident"),
        ("unmask", "lowest-entrpy", "lowest-entropy"),
        ("length", "survial", "survival"),
        ("length", "Fixed", "fixed"),
        ("cache", "nocache", "none"),
        ("cache", "dllm_cache", "feature"),
    ):
        with pytest.raises(RecipeError, match=f"did you mean '{ours}'"):
            parse_part(axis, wrong)


def test_a_name_like_no_other_lists_what_is_known():
    with pytest.raises(RecipeError, match=r"known: budget, calibrated, .*, survival-at-step, default"):
        parse_part("length", "qqqq")


def test_text_that_says_nothing_we_know_is_refused():
    for text, words in (
        ("fixed:slts=3", "no field 'slts'.*did you mean 'slots'"),
        ("fixed:3,4", "without a field name"),
        ("survival:512,0.9", "without a field name"),
        ("survival:256,limit=512", "limit of survival is set twice"),
        ("survival:ends=any,ends=document", "ends of survival is set twice"),
        ("fixed:slots=many", "fixed cannot be made"),
        ("survival:estimate=5", "estimate is 5"),
        ("stop-at-end:(survival:512,interpretation=auto", "brackets .* do not match"),
        ("stop-at-end:survival:512),increment=3", "brackets .* do not match"),
        ("stop-at-end:survival:512,interpretation=auto", "no field 'interpretation'.*in brackets"),
        ("survival:estimate=median", "no estimate called 'median'"),
        ("default:by=3", "no field 'by'; known: limit"),
        ("default:64,interpretation=hazard", "no field 'interpretation'; known: limit"),
        ("Default", "did you mean 'default'"),
    ):
        with pytest.raises(RecipeError, match=words):
            parse_part("length", text)


def test_a_part_without_fields_takes_no_value():
    with pytest.raises(RecipeError, match="no fields"):
        parse_part("commit", "never:3")


def test_json_that_is_no_recipe_is_refused():
    for text, words in (
        ("{broken", "not valid JSON"),
        ("[1]", "must be an object"),
        ('"survival"', "must be an object"),
        ('{"lenght": "fixed:3"}', "no field 'lenght'.*did you mean 'length'"),
        ('{"length": 5}', "length is 5"),
        ('{"length": {}}', "no length called ''"),
        ('{"length": {"name": "fixed", "slts": 3}}', "no field 'slts'"),
        ('{"unmask": {"name": "low_confidence"}}', "did you mean 'most-confident'"),
        ('{"sampling": {"temperature": "hot"}}', "sampling cannot be made"),
    ):
        with pytest.raises(RecipeError, match=words):
            Recipe.from_json(text)


def test_values_outside_their_range_are_setting_errors():
    for text in ('{"length": "fixed:0"}', '{"sampling": {"top_p": 2.0}}', '{"block": 0}'):
        with pytest.raises(SettingError):
            Recipe.from_json(text)


WRONG_KINDS = [
    'Recipe.from_json(\'{"block": "x"}\')',
    "Recipe.from_json('{\"block\": 2.5}')",
    "Recipe.from_json('{\"block\": true}')",
    'Recipe.from_json(\'{"length": {"name": 3}}\')',
    'Recipe.from_json(\'{"length": {"name": ["fixed"]}}\')',
    'Recipe.from_json(\'{"sampling": {"top_k": 1.5}}\')',
    'Recipe.from_json(\'{"sampling": {"forbid_end": "no"}}\')',
    "part('length', 'fixed:2.5')",
    "part('length', 'fixed:NaN')",
    "part('length', 'fixed:true')",
    "Recipe(length='survival')",
    "Recipe(unmask=lastword.Survival())",
    "Recipe(block=2.5)",
    "lastword.Sampling(temperature='hot')",
]


def test_values_of_the_wrong_kind_are_refused(in_plain_python):
    outcome = in_plain_python(WRONG_KINDS)
    slipped = {code: r for code, r in outcome.items() if r not in ("SettingError", "RecipeError")}
    assert slipped == {}


def test_whole_numbers_will_do_where_a_pace_or_temperature_is_wanted(in_plain_python):
    codes = ["part('unmask', 'most-confident:timesteps:2')", 'Recipe.from_json(\'{"sampling": {"temperature": 1}}\')']
    assert set(in_plain_python(codes).values()) == {"no error"}


def test_a_part_that_has_no_name_is_not_saved_in_silence():
    @dataclass(frozen=True)
    class Mine(UnmaskRule):
        def choose(self, prediction, open, clock, state):
            return open, state

    with pytest.raises(LastwordError, match="Mine"):
        Recipe(unmask=Mine()).to_json()


# By name


def test_a_recipe_goes_by_its_name():
    one = MostConfident()
    assert Recipe.named("careful") == Recipe(length=default_length(), unmask=one)
    assert Recipe.named("fast") == Recipe(length=default_length(), unmask=AboveThreshold(0.97))
    assert Recipe.named("paper") == Recipe(length=Survival(), unmask=one)
    assert Recipe.named("fixed") == Recipe(length=Fixed(), unmask=one)
    for name in NAMED:
        assert Recipe.coerce(name) == Recipe.named(name)
        assert Recipe.from_json(Recipe.named(name).to_json()) == Recipe.named(name)
    assert Recipe.coerce(None) == Recipe() == Recipe.named(DEFAULT_RECIPE)


@pytest.mark.parametrize("name", NAMED)
def test_a_recipe_by_name_is_settled_for_a_model_like_any(name, toy):
    resolved = resolve(name, toy)
    assert resolved == resolve(Recipe.named(name), toy)
    assert combined_traits(resolved.length).upper_bound == toy.default_max_new_tokens
    assert resolved.block == (32 if name in ("careful", "fast") else None)


@pytest.mark.parametrize(
    ("name", "hint"), [("fats", "did you mean 'fast'"), ("Paper", "did you mean 'paper'"), ("", "known: careful")]
)
def test_an_unknown_name_is_refused_with_those_that_are_known(name, hint):
    with pytest.raises(RecipeError, match=hint) as refused:
        Recipe.coerce(name)
    assert all(known in str(refused.value) for known in NAMED)


# The default


def test_the_default_length_keeps_to_its_limit():
    length = default_length(96)
    assert to_text(length) == "stop-at-end:(grow-when-full:(survival:96,interpretation=auto),limit=96)"
    assert parse_part("length", to_text(length)) == length


def test_the_default_length_is_written_as_what_it_is_made_of():
    recipe = Recipe.from_json('{"length": "default:96"}')
    assert recipe == Recipe(length=default_length(96))
    assert recipe == Recipe.from_json('{"length": {"name": "default", "limit": 96}}')
    assert recipe == Recipe().with_choices(length="default:96")
    assert recipe == Recipe.from_json(recipe.to_json())
    assert json.loads(recipe.to_json())["length"]["name"] == "stop-at-end"
    assert "default" not in recipe.label()
    with pytest.raises(SettingError, match="limit=0"):
        parse_part("length", "default:0")


def test_every_part_goes_with_the_default_length():
    for axis in ("unmask", "cache", "commit"):
        for cls in PARTS[axis].values():
            Recipe(**{axis: cls()})
