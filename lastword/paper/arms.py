"""Which recipe is which: the parts that records of one benchmark play in the paper's comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields

from lastword.evaluate.records import Answer, Asked, Drift, Record
from lastword.paper.pairing import answers, by_recipe, by_subject, latest
from lastword.policies.cache import NoCache
from lastword.policies.commit import Never
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
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
LENGTH, BLOCK = {"length"}, {"block"}  # choices in which an arm may differ from the baseline


def benchmark_of(record: Asked) -> str:
    """The benchmark a record counts for: that of the paper, or its own name."""
    marks = (mark for name, mark in BENCHMARK.items() if record.task.startswith(name))
    return next(marks, record.task)


def said_as(benchmark: str, records: Iterable[Asked]) -> str:
    """A benchmark in a table: an embedded family is not the benchmark it stands for."""
    families = sorted({r.task for r in records if r.task in BENCHMARKS})
    return f"{families[0]} (for {benchmark})" if families else benchmark


@dataclass(frozen=True)
class Arm:
    """One recipe: its records, one a sample."""

    recipe: Recipe
    records: list[Answer]

    @property
    def slots(self) -> int | None:
        """Of a fixed canvas; None for any other length."""
        length = self.recipe.length
        return length.slots if isinstance(length, Fixed) else None

    @property
    def plain(self) -> bool:
        """Nothing but length, order and draw: no cache, no early commit."""
        return (self.recipe.commit, self.recipe.cache) == (Never(), NoCache())

    def differs_from(self, other: Arm) -> set[str]:
        """The choices in which two recipes differ."""
        return differences(self.recipe, other.recipe)


def differences(one: Recipe, other: Recipe) -> set[str]:
    """The names of the choices that two recipes do not share."""
    names = [choice.name for choice in fields(one)]
    return {name for name in names if getattr(one, name) != getattr(other, name)}


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
    drift: list[Drift] = field(default_factory=list)

    @property
    def fixed_at_mean(self) -> Arm | None:
        """The fixed canvas of the mean predicted length: the paper's Table 3."""
        return self.canvases.get(mean_slots(self.survival.records)) if self.survival else None

    @property
    def task(self) -> str:
        """The benchmark, as tables name it."""
        return said_as(self.benchmark, [*(self.fixed.records if self.fixed else ()), *self.drift])


def mean_slots(records: Sequence[Answer]) -> int:
    """The mean predicted horizon, rounded up: a canvas that spends as much and knows no prompt."""
    return math.ceil(sum(r.horizon for r in records) / len(records)) if records else 0


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


def recipes_of(records: Iterable[Answer]) -> list[Arm]:
    """Every recipe, an arm each, in order of first appearance."""
    return [Arm(recipe, mine) for recipe, mine in by_recipe(records).items()]


def _counted(records: Sequence[Record]) -> list[Record]:
    drift = [record for record in records if isinstance(record, Drift)]
    return [*answers(records), *latest(drift)]


def _arms(subject: str, benchmark: str, records: Sequence[Record]) -> Arms:
    arms = recipes_of(r for r in records if isinstance(r, Answer))
    fixed = _baseline(arms)
    canvases = {arm.slots: arm for arm in arms if fixed and arm.slots and arm.differs_from(fixed) <= LENGTH}
    return Arms(
        subject,
        benchmark,
        fixed,
        _beside(fixed, arms, _is_survival),
        _daedal(arms),
        _beside(fixed, arms, _is_stopped),
        _beside(fixed, arms, _is_default),
        canvases,
        [r for r in records if isinstance(r, Drift)],
    )


def _baseline(arms: Sequence[Arm]) -> Arm | None:
    """The longest fixed canvas that is no mere trial, with the usual parts if there are several."""
    usual = Recipe.named("fixed")
    fixed = [arm for arm in arms if arm.slots and arm.plain]
    most = max((len(arm.records) for arm in fixed), default=0)
    asked = [arm for arm in fixed if 2 * len(arm.records) >= most]
    return max(
        asked,
        key=lambda arm: (arm.slots, len(arm.records), differences(arm.recipe, usual) <= LENGTH),
        default=None,
    )


def _beside(base: Arm | None, arms: Sequence[Arm], fits: Callable[[Arm, Arm], bool]) -> Arm | None:
    return next((arm for arm in arms if base is not None and fits(base, arm)), None)


def _is_survival(base: Arm, arm: Arm) -> bool:
    """The paper's own: its mean, its reading, the baseline's canvas probed, the same other parts."""
    return arm.recipe.length == Survival(base.slots or 1) and arm.differs_from(base) <= LENGTH


def _is_default(base: Arm, arm: Arm) -> bool:
    """Our own default, probing and growing to the baseline's canvas; it comes with blocks."""
    default = default_length(base.slots or 1)
    return arm.recipe.length == default and arm.differs_from(base) <= LENGTH | BLOCK


def _is_stopped(base: Arm, arm: Arm) -> bool:
    """The baseline's canvas, ended at an end token; that needs blocks, which the baseline may lack."""
    stopped = StopAtEnd(base.recipe.length)
    return arm.recipe.length == stopped and arm.differs_from(base) <= LENGTH | BLOCK


def _daedal(arms: Sequence[Arm]) -> Arm | None:
    """DAEDAL with the rule of its paper where that was measured, else with any."""
    found = [arm for arm in arms if isinstance(arm.recipe.length, Daedal) and arm.plain]
    by_rule = [arm for arm in found if isinstance(arm.recipe.unmask, AboveThreshold)]
    return next(iter(by_rule + found), None)
