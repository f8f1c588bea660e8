"""Parts of a user's own, known by name."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

import lastword
from lastword.errors import SettingError, WrongTypeError
from lastword.evaluate import Journal
from lastword.evaluate.journal import read_records
from lastword.evaluate.run import evaluate
from lastword.evaluate.tasks import EmbeddedTask
from lastword.policies.unmask.rule import MostConfident, UnmaskRule
from lastword.recipe.registry import PARTS


@dataclass(frozen=True)
class Sure(UnmaskRule):
    """The surest mask of every row."""

    name: ClassVar[str] = "sure"
    pace: float = 1.0

    def choose(self, prediction, open, clock, state):
        return MostConfident().choose(prediction, open, clock, state)


@pytest.fixture
def registered(names_restored):
    """`register`, undone afterwards."""
    return lastword.register


def test_a_part_that_is_registered_is_written_and_read(registered):
    assert registered(Sure) is Sure
    recipe = lastword.Recipe(unmask=Sure(2.0))
    assert lastword.Recipe.from_json(recipe.to_json()) == recipe
    assert json.loads(recipe.to_json())["unmask"] == {"name": "sure", "pace": 2.0}
    assert lastword.Recipe().with_choices(unmask="sure:2.0") == recipe
    assert "sure:2" in recipe.label()


def test_what_is_not_registered_says_how():
    with pytest.raises(lastword.LastwordError, match=r"@lastword\.register"):
        lastword.Recipe(unmask=Sure()).to_json()


def test_an_evaluation_keeps_it(registered, tmp_path):
    registered(Sure)
    model = lastword.load("tiny-llada-base", device="cpu")
    recipe = lastword.Recipe(length=lastword.Fixed(8), unmask=Sure())
    journal = Journal(tmp_path / "own.jsonl")
    made = evaluate(model, "tiny", [EmbeddedTask("algebra")], recipe, journal, limit=1)
    (read,) = read_records(journal.path)
    assert read.recipe.unmask == Sure()
    assert read.text == made[0].text


def test_records_are_read_as_the_class_that_was_registered_last(registered, tmp_path):
    def cell():
        return registered(dataclass(frozen=True)(type("Again", (Sure,), {"name": "again", "__annotations__": {}})))

    model = lastword.load("tiny-llada-base", device="cpu")
    journal = Journal(tmp_path / "own.jsonl")
    for _ in range(2):  # the second time nothing is asked, and the records are found
        recipe = lastword.Recipe(length=lastword.Fixed(8), unmask=cell()())
        (made,) = evaluate(model, "tiny", [EmbeddedTask("algebra")], recipe, journal, limit=1)
        assert type(made.recipe.unmask) is type(recipe.unmask)
    assert len(read_records(journal.path)) == 1


def test_a_cell_that_is_run_again_takes_the_place_of_the_first(registered):
    def cell():
        @lastword.register
        @dataclass(frozen=True)
        class Again(Sure):
            name: ClassVar[str] = "again"

        return Again

    first, second = cell(), cell()
    assert first is not second
    assert PARTS["unmask"]["again"] is second


def test_names_are_taken_once_and_only_parts_have_any(registered):
    def named(name, base=Sure):
        return dataclass(frozen=True)(type("Mine", (base,), {"name": name, "__annotations__": {}}))

    for taken in ("most-confident", "threshold"):
        with pytest.raises(SettingError, match="already"):
            registered(named(taken))
    with pytest.raises(SettingError, match="already"):
        registered(named("default", lastword.Fixed))
    for wrong in ("", "My Rule", "a:b", None, 3, "x" * 61):
        with pytest.raises(SettingError, match="ClassVar"):
            registered(named(wrong))
    with pytest.raises(SettingError, match="ClassVar"):  # a name that is its parent's
        registered(dataclass(frozen=True)(type("Child", (Sure,), {"__annotations__": {}})))
    loose = type("Loose", (UnmaskRule,), {"name": "loose"})
    undecorated = type("Child", (Sure,), {"name": "loose", "__annotations__": {"more": int}})
    changeable = dataclass(type("Changeable", (UnmaskRule,), {"name": "loose"}))
    as_field = dataclass(frozen=True)(type("Field", (UnmaskRule,), {"name": "loose", "__annotations__": {"name": str}}))
    for wrong in (Sure(), dict, "sure", None, loose, undecorated, changeable, as_field):
        with pytest.raises(WrongTypeError, match="frozen dataclass"):
            registered(wrong)
    assert "loose" not in PARTS["unmask"]
