"""Tests that tables in docs are made from the kept records, and that the records support the project's claims."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pages, study
from benchmarks.arms import ARMS, DRIFT, FIXED_MEAN, FIXED_MEANS, GROUPS, MODELS, recipe_of
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import PARTS, default_length
from lastword.tasks import BENCHMARKS
from tests.benchmarks.summary import PEERS

ROOT = Path(__file__).parent.parent.parent
DEFAULT = "auto, grow, stop"
MAX_BYTES = 55 * 10**6
# Prompts per family and batch size of the records that were timed.
TIMED = {"speed": (3, 1), "gpu-speed": (10, 1), "batch-speed": (250, 250)}


@pytest.fixture(scope="module")
def summary():
    """The summary of the kept records, which is computed once."""
    command = [sys.executable, "-m", "tests.benchmarks.summary"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_tracked_files_stay_small():
    """Weights are 43 MB of the limit. Drop records that no table shows before you add others."""
    listing = subprocess.run(["git", "ls-files", "-z"], capture_output=True, cwd=ROOT, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < MAX_BYTES


def test_the_pages_show_the_tables_of_the_records(summary):
    assert summary["stale"] == [], "run python -m benchmarks.pages"


def test_a_table_that_differs_is_replaced(monkeypatch):
    monkeypatch.setitem(pages.TABLES, "speed", lambda: "| new |")
    page = "before\n<!-- table: speed -->\n\n| old |\n\n<!-- end -->\nbehind"
    assert pages.written(page) == page.replace("old", "new")


def test_every_table_is_on_one_page():
    names = [name for page in pages.PAGES for _, name, _ in pages.PLACE.findall(page.read_text())]
    assert sorted(names) == sorted(pages.TABLES)


def test_the_records_are_of_the_embedded_weights(summary):
    assert summary["weights"] == {model: [study.shipped(model)] for model in MODELS}


def test_arms_have_different_recipes_and_groups_contain_known_arms():
    assert len({arm.recipe for arm in ARMS.values()}) == len(ARMS)
    for group in GROUPS.values():
        assert set(group.arms) <= {*ARMS, FIXED_MEAN, FIXED_MEANS, DRIFT}


def test_the_embedded_models_are_accurate_enough(summary):
    for model in MODELS:
        shares = summary["accuracy"][model]
        assert summary["prompts_per_family"][model] >= 500
        assert sum(shares.values()) / len(shares) >= 0.85
        assert min(shares.values()) >= 0.70


# The default


def test_the_default_is_chosen_by_validation_prompts(summary):
    """The rule: no loss on any model, then the fewest tokens; two percent are allowed for support of every cache."""
    assert Recipe(length=default_length(256), block=32) == recipe_of(DEFAULT)
    tokens = {
        arm: sum(comparison["tokens"] for comparison in comparisons)
        for arm, comparisons in summary["against_fixed"]["validation"].items()
        if all(comparison is not None and comparison["points"] >= 0 for comparison in comparisons)
    }
    assert DEFAULT in tokens
    assert tokens[DEFAULT] <= 1.02 * min(tokens.values())


@pytest.mark.parametrize("split", ["test", "unseen"])
def test_the_default_meets_the_conditions_of_decision_16(summary, split):
    """The conditions were written before the unseen prompts were decoded."""
    arms = summary["against_fixed"][split]
    default, paper = arms[DEFAULT], arms["survival"]
    assert all(ours["points"] > 0 or ours["p"] >= 0.05 for ours in default)
    for ours, theirs in zip(default[:2], paper[:2], strict=True):  # base models
        assert ours["tokens"] <= 0.75 * theirs["tokens"]
    for peer in PEERS:
        for ours, theirs in zip(default[2:], arms[peer][2:], strict=True):  # instruct models, the same unmask rule
            assert ours["tokens"] < theirs["tokens"]


def test_every_arm_answered_all_unseen_prompts(summary):
    assert set(summary["unseen"].values()) == {700 * len(BENCHMARKS)}


@pytest.mark.parametrize("folder", TIMED)
def test_every_arm_was_timed_on_the_same_prompts_with_every_model(summary, folder):
    per_family, batch_size = TIMED[folder]
    arms = summary["timed"][folder]
    assert len(arms) == len(GROUPS["speed"].arms) * len(MODELS)
    for arm, batches in arms.items():
        assert sorted(batches) == [[task, per_family, True, [batch_size], True] for task in sorted(BENCHMARKS)], arm


def test_parts_were_timed_on_the_prompts_of_their_accuracy(summary):
    """They are the first 300 prompts of each family, in batches of 500."""
    for arm, batches in summary["parts"].items():
        assert sorted(batches) == [[task, 300, True, [500], True] for task in sorted(BENCHMARKS)], arm


NOT_TIMED_YET = {"local-leap"}  # added after the last timed run


def test_every_part_of_the_study_was_timed():
    """Exceptions need a calibration, limit a length, are measured without times, or are new."""
    recipes = [json.loads(recipe_of(arm).to_json()) for arm in GROUPS["parts"].arms]
    for axis in ("length", "unmask", "commit", "cache"):
        text = json.dumps([recipe[axis] for recipe in recipes])
        names = set(re.findall(r'"name": "([a-z-]+)"', text))
        assert set(PARTS[axis]) - names <= {"calibrated", "budget", "reread"} | NOT_TIMED_YET


def test_calibrated_bounds_cover_their_share_within_two_points(summary):
    assert len(summary["coverage"]) == len(MODELS) * len(BENCHMARKS) * 2
    for family, wanted, measured, prompts in summary["coverage"]:
        assert prompts == 8000
        assert abs(measured - wanted) <= 0.02, family
