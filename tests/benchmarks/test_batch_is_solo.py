"""Tests of the random comparison of batches with solo runs."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

import lastword
from benchmarks import batch_is_solo
from benchmarks.batch_is_solo import MODELS, Trial, recipe, run
from lastword.recipe.registry import PARTS

SMALL = lastword.Recipe(length=lastword.Fixed(4), block=2).to_json()
PROMPTS = ["Calculate 3 + 4.", "def add(a, b):"]


@pytest.fixture
def small(monkeypatch):
    """A trial of two short prompts, which replaces the random ones."""
    trial = Trial(MODELS[0], SMALL, PROMPTS, [3, 5])
    monkeypatch.setattr(batch_is_solo, "trials", lambda seed: iter([trial]))
    return trial


@pytest.mark.full
def test_every_part_is_drawn():
    rng = random.Random(0)
    recipes = " ".join(recipe(rng).to_json() for _ in range(600))
    axes = ("length", "unmask", "commit", "cache", "schedule")
    missing = [name for axis in axes for name in PARTS[axis] if f'"{name}"' not in recipes]
    assert missing == ["calibrated"]  # requires the recipe of its calibration


def test_equal_seeds_draw_equal_trials():
    first, second = (Trial.draw(random.Random(7), MODELS[1]) for _ in range(2))
    assert first == second
    assert Trial(**json.loads(json.dumps(dataclasses.asdict(first)))) == first


def test_a_batch_is_compared_with_its_solo_runs(small, capsys):
    assert run(minutes=0, seed=0) == (2, 0)
    assert capsys.readouterr().out == ""


def test_a_row_that_differs_is_printed_with_its_trial(small, capsys, monkeypatch):
    generate = lastword.generate

    def wrong_last_row(model, prompts, *, recipe, seed):
        answers = generate(model, prompts, recipe=recipe, seed=seed)
        wrong = [dataclasses.replace(answer, horizon=3 + len(prompts)) for answer in answers]
        return [*answers[:-1], wrong[-1]] if len(prompts) > 1 else answers

    monkeypatch.setattr(lastword, "generate", wrong_last_row, raising=False)
    assert run(minutes=0, seed=0) == (2, 1)
    trial, difference = capsys.readouterr().out.splitlines()
    assert Trial(**json.loads(trial)) == small
    assert json.loads(difference.removeprefix("  differs: ")) == {"row": 1, "horizon": "(5, 4)"}


def test_a_batch_that_is_rejected_like_its_rows_is_not_counted():
    long = lastword.Recipe(length=lastword.Fixed(100_000)).to_json()
    assert Trial(MODELS[0], long, PROMPTS, [1, 2]).differences() is None
