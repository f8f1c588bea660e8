"""Records made by hand: what a test does not say is the same for all."""

from lastword.evaluate.records import Answer, Drift, RecordedCost
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe

ASKED = {
    "model": "m", "weights": "w", "recipe": Recipe(length=Fixed(8)), "seed": 0, "task": "t", "group": "tiny",
    "task_version": "version 1", "split": "test", "index": 0, "layout": "plain", "hardware": "a machine",
    "dtype": "float32", "versions": {"lastword": "1"},
}  # fmt: skip
ANSWERED = {
    "prompt_tokens": 10, "horizon": 8, "probe_cost": RecordedCost(0, 0, 0), "cost": RecordedCost(2, 20, 400),
    "finish": "ended", "length": 5, "rows": 1, "seconds_share": 1.0, "score": 1.0,
}  # fmt: skip


def answer(**fields):
    return Answer(**(ASKED | ANSWERED | fields))


def drift(**fields):
    return Drift(**(ASKED | {"kind": "drift", "expected": {"0": 5.0, "2": 6.0}} | fields))
