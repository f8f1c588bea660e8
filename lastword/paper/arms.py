"""Which recipe is which: the parts that records of one benchmark play in the paper's comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastword.eval.journal import Record
from lastword.length import Fixed
from lastword.paper.pairing import answers, by_recipe, by_subject, latest
from lastword.recipe.names import default_length
from lastword.recipe.recipe import Recipe
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
    """One recipe: its records, one a sample."""

    recipe: dict[str, Any]
    records: list[Record]

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
        """Nothing but length, order and draw: no cache, no early commit."""
        return self.recipe["commit"]["name"] == "never" and self.recipe["cache"]["name"] == "none"


@dataclass(frozen=True)
class Arms:
    """What one benchmark was asked with. An arm that was not measured is None or missing."""

    subject: str  # the model, as tables name it
    benchmark: str
    fixed: Arm | None = None  # the longest fixed canvas: the baseline, "w/o"
    survival: Arm | None = None  # the paper's prediction with the baseline's other parts, "w/"
    daedal: Arm | None = None
    stop: Arm | None = None  # the baseline with StopAtEnd
    default: Arm | None = None  # what generate does without a choice, on the baseline's canvas
    canvases: dict[int, Arm] = field(default_factory=dict)  # fixed ones by their slots
    drift: list[Record] = field(default_factory=list)

    @property
    def fixed_at_mean(self) -> Arm | None:
        """The fixed canvas of the mean predicted length: the paper's Table 3."""
        return self.canvases.get(mean_slots(self.survival.records)) if self.survival else None

    @property
    def task(self) -> str:
        """The benchmark, as tables name it."""
        return said_as(self.benchmark, [*(self.fixed.records if self.fixed else ()), *self.drift])


def mean_slots(records: Sequence[Record]) -> int:
    """The mean predicted horizon, rounded up: a canvas that spends as much and knows no prompt."""
    return math.ceil(sum(r["horizon"] for r in records) / len(records)) if records else 0


def arms_of(records: Sequence[Record]) -> list[Arms]:
    """The arms of every model and benchmark, test split only, the paper's benchmarks in its order.

    A benchmark has a baseline of its own: a preset asks each with another recipe.
    """
    found = []
    for subject, mine in by_subject(_counted(records)).items():
        marks: dict[str, list[Record]] = {}
        for record in mine:
            marks.setdefault(benchmark_of(record), []).append(record)
        for mark in [*(b for b in ORDER if b in marks), *sorted(set(marks) - set(ORDER))]:
            found.append(_arms(subject, mark, marks[mark]))
    return found


def recipes_of(records: Iterable[Record]) -> list[Arm]:
    """Every recipe, an arm each, in order of first appearance."""
    return [Arm(mine[0]["recipe"], mine) for mine in by_recipe(records).values()]


def _counted(records: Sequence[Record]) -> list[Record]:
    drift = [record for record in records if record.get("kind") == "drift"]
    return [*answers(records), *latest(drift)]


def _arms(subject: str, benchmark: str, records: Sequence[Record]) -> Arms:
    arms = recipes_of([r for r in records if r.get("kind", "answer") == "answer"])
    fixed = _baseline(arms)
    canvases = {arm.slots: arm for arm in arms if fixed and arm.slots and arm.rest == fixed.rest}
    return Arms(
        subject,
        benchmark,
        fixed,
        _beside(fixed, arms, _is_survival),
        _daedal(arms),
        _beside(fixed, arms, _is_stopped),
        _beside(fixed, arms, _is_default),
        canvases,
        [r for r in records if r.get("kind") == "drift"],
    )


def _baseline(arms: Sequence[Arm]) -> Arm | None:
    """The longest fixed canvas that is no mere trial, with the usual parts if there are several."""
    usual = Arm(json.loads(Recipe(length=Fixed(1)).to_json()), []).rest
    fixed = [arm for arm in arms if arm.slots and arm.plain]
    most = max((len(arm.records) for arm in fixed), default=0)
    asked = [arm for arm in fixed if 2 * len(arm.records) >= most]
    return max(
        asked, key=lambda arm: (arm.slots, len(arm.records), arm.rest == usual), default=None
    )


def _beside(base: Arm | None, arms: Sequence[Arm], fits: Any) -> Arm | None:
    return next((arm for arm in arms if base is not None and fits(base, arm)), None)


def _is_survival(base: Arm, arm: Arm) -> bool:
    """The paper's own: its mean, its reading, the baseline's canvas probed, the same other parts."""
    length = arm.recipe["length"]
    return (
        length["name"] == "survival"
        and length["limit"] == base.slots
        and (length["estimate"]["name"], length["reading"]["name"]) == ("mean", "hazard")
        and length["ends"] == "document"
        and arm.rest == base.rest
    )


def _is_default(base: Arm, arm: Arm) -> bool:
    """Our own default, probing and growing to the baseline's canvas; it comes with blocks."""
    default = json.loads(Recipe(length=default_length(base.slots or 1)).to_json())
    return (
        arm.recipe["length"] == default["length"]
        and {**arm.rest, "block": base.recipe["block"]} == base.rest
    )


def _is_stopped(base: Arm, arm: Arm) -> bool:
    """The baseline's canvas, ended at an end token; that needs blocks, which the baseline may lack."""
    length = arm.recipe["length"]
    return (
        length["name"] == "stop-at-end"
        and length["length"].get("slots") == base.slots
        and {**arm.rest, "block": base.recipe["block"]} == base.rest
    )


def _daedal(arms: Sequence[Arm]) -> Arm | None:
    """DAEDAL with the rule of its paper where that was measured, else with any."""
    found = [arm for arm in arms if arm.recipe["length"]["name"] == "daedal" and arm.plain]
    by_rule = [arm for arm in found if arm.recipe["unmask"]["name"] == "threshold"]
    return next(iter(by_rule + found), None)
