"""Which recipe is which: the parts that records of one model play in the paper's comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lastword.eval.journal import Record
from lastword.length import Fixed
from lastword.recipe import Recipe
from lastword.tasks import BENCHMARKS

# The paper's benchmarks, by the names our families and the harness's tasks begin with.
BENCHMARK = {
    "reasoning": "BBH",
    "bbh": "BBH",
    "word_problems": "GSM8K",
    "gsm8k": "GSM8K",
    "algebra": "MATH",
    "minerva_math": "MATH",
    "complete_function": "HumanEval",
    "humaneval": "HumanEval",
    "write_function": "MBPP",
    "mbpp": "MBPP",
}
ORDER = ("BBH", "GSM8K", "MATH", "HumanEval", "MBPP")


def benchmark_of(record: Record) -> str:
    """The benchmark a record counts for: that of the paper, or its own name."""
    task = record["task"]
    return next((mark for name, mark in BENCHMARK.items() if task.startswith(name)), task)


def said_as(benchmark: str, records: Iterable[Record]) -> str:
    """A benchmark in a table: an embedded family is not the benchmark it stands for."""
    families = sorted({r["task"] for r in records if r["task"] in BENCHMARKS})
    return f"{families[0]} (for {benchmark})" if families else benchmark


@dataclass(frozen=True)
class Arm:
    """One recipe on one model: its records, one a sample."""

    recipe: dict[str, Any]
    records: list[Record]

    def of(self, benchmark: str) -> Arm:
        """The same on one benchmark."""
        return Arm(self.recipe, [r for r in self.records if benchmark_of(r) == benchmark])

    @cached_property
    def scores(self) -> dict[tuple[str, int], float]:
        return {(r["task"], r["place"]): r["score"] for r in self.records}

    @property
    def slots(self) -> int | None:
        """Of a fixed canvas; None for any other length."""
        length = self.recipe["length"]
        return int(length["slots"]) if length["name"] == "fixed" else None

    @property
    def rest(self) -> dict[str, Any]:
        """Everything but the length."""
        return {axis: part for axis, part in self.recipe.items() if axis != "length"}

    @property
    def plain(self) -> bool:
        """Nothing but the length differs from the authors' loops: no cache, no early commit."""
        return self.recipe["commit"]["name"] == "never" and self.recipe["cache"]["name"] == "none"


@dataclass(frozen=True)
class Arms:
    """What one model was measured with. An arm that was not measured is None or missing."""

    model: str
    fixed: Arm | None = None  # the longest fixed canvas: the baseline, "w/o"
    survival: Arm | None = None  # the paper's prediction with the baseline's other parts, "w/"
    daedal: Arm | None = None
    stop: Arm | None = None  # the baseline with StopAtEnd
    canvases: dict[int, Arm] = field(default_factory=dict)  # fixed ones by their slots
    drift: list[Record] = field(default_factory=list)

    @property
    def benchmarks(self) -> list[str]:
        """Those with records to show, the paper's first and in its order."""
        measured = (*(self.fixed.records if self.fixed else ()), *self.drift)
        found = {benchmark_of(r) for r in measured}
        return [*(b for b in ORDER if b in found), *sorted(found - set(ORDER))]

    def fixed_at_mean(self, benchmark: str) -> Arm | None:
        """The fixed canvas of the mean predicted length: the paper's Table 3."""
        if self.survival is None:
            return None
        arm = self.canvases.get(mean_slots(self.survival.of(benchmark).records))
        return arm.of(benchmark) if arm and arm.of(benchmark).records else None


def mean_slots(records: Sequence[Record]) -> int:
    """The mean predicted horizon, rounded up: a canvas that spends as much and knows no prompt."""
    return math.ceil(sum(r["horizon"] for r in records) / len(records)) if records else 0


def arms_of(records: Sequence[Record], *, timed: bool = False) -> list[Arms]:
    """The arms of every model, test split only. `timed`: only records whose seconds count.

    The same recipe may have been measured on two machines; the one with more samples speaks.
    """
    models: dict[str, list[Record]] = {}
    for record in records:
        if record.get("split", "test") == "test":
            models.setdefault(record["model"], []).append(record)
    return [_arms(model, mine, timed) for model, mine in models.items()]


def recipes_of(records: Iterable[Record]) -> list[Arm]:
    """Every recipe that answered test samples, one arm each."""
    answers = [r for r in records if r.get("kind", "answer") == "answer"]
    return _by_recipe([r for r in answers if r.get("split", "test") == "test"], ("hardware",))


def _arms(model: str, records: Sequence[Record], timed: bool) -> Arms:
    answers = [r for r in records if r.get("kind", "answer") == "answer"]
    if timed:
        answers = [r for r in answers if r.get("batch_seconds") is not None]
    # Seconds depend on how many rows were decoded at once; answers do not.
    arms = _by_recipe(answers, ("hardware", "rows") if timed else ("hardware",))
    fixed = _baseline(arms)
    canvases = {arm.slots: arm for arm in arms if fixed and arm.slots and arm.rest == fixed.rest}
    return Arms(
        model,
        fixed,
        _first(arms, fixed, "survival", {"estimate": "mean", "reading": "hazard"}),
        _daedal(arms),
        _first(arms, fixed, "stop-at-end", {"length": "fixed"}),
        canvases,
        [r for r in records if r.get("kind") == "drift"],
    )


def _by_recipe(records: Iterable[Record], apart: tuple[str, ...]) -> list[Arm]:
    found: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        machines = found.setdefault(json.dumps(record["recipe"], sort_keys=True), {})
        machines.setdefault(str([record[name] for name in apart]), []).append(record)
    most = [max(machines.values(), key=len) for machines in found.values()]
    return [Arm(records[0]["recipe"], records) for records in most]


def _baseline(arms: Sequence[Arm]) -> Arm | None:
    """The longest fixed canvas; with the rule most samples were asked with, if there are several."""
    usual = Recipe(length=Fixed(1)).to_json()
    rest = Arm(json.loads(usual), []).rest
    fixed = [arm for arm in arms if arm.slots and arm.plain]
    return max(
        fixed,
        key=lambda arm: (arm.slots, len(arm.records), arm.rest == rest),
        default=None,
    )


def _first(arms: Sequence[Arm], base: Arm | None, length: str, parts: dict[str, str]) -> Arm | None:
    """The arm of this length that shares the baseline's other parts."""
    if base is None:
        return None
    for arm in arms:
        chosen = arm.recipe["length"]
        fits = chosen["name"] == length and all(
            chosen[name]["name"] == part for name, part in parts.items()
        )
        # Stopping at an end needs blocks; anything else keeps the baseline's.
        needed = {"block": base.recipe["block"]} if length == "stop-at-end" else {}
        if fits and {**arm.rest, **needed} == base.rest:
            return arm
    return None


def _daedal(arms: Sequence[Arm]) -> Arm | None:
    """DAEDAL with the rule of its paper where that was measured, else with any."""
    found = [arm for arm in arms if arm.recipe["length"]["name"] == "daedal" and arm.plain]
    return next((a for a in found if a.recipe["unmask"]["name"] == "threshold"), None) or next(
        iter(found), None
    )
