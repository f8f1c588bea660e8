"""The tables of the survival paper from records, with its published values.

*Survival-Guided Length Control for Efficient Diffusion Language Models* (Kobyzev, Ghaddar, Cui). Costs are
counted in columns as well as in seconds, accuracy is compared on the samples that both arms answered, and a
last table shows what the paper does not compare.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from lastword.evaluate.records import Answer, BaseRecord, Drift, Record
from lastword.evaluate.tables import (
    Cost,
    by_recipe,
    by_subject,
    escape_cell,
    latest,
    mean_and_spread,
    on_shared_samples,
    paired_p,
    plan_fit,
    standard_error,
    total_cost,
    total_seconds,
)
from lastword.policies.cache import NoCache
from lastword.policies.commit import Never
from lastword.policies.length.daedal import Daedal
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.recipe.text import to_text
from lastword.tasks import BENCHMARKS

# The paper's benchmarks by the beginnings of task names, ours and the harness's.
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
Rows = list[list[str]]
Shared = list[list[Answer]]  # arms on the samples that all of them answered


@dataclass(frozen=True)
class Arm:
    """The records of one recipe, one per sample."""

    recipe: Recipe
    records: list[Answer]

    @property
    def slots(self) -> int | None:
        """The slots of a fixed canvas; None for other policies."""
        length = self.recipe.length
        return length.slots if isinstance(length, Fixed) else None

    @property
    def is_plain(self) -> bool:
        """True if the recipe has neither a cache nor an early commit."""
        return (self.recipe.commit, self.recipe.cache) == (Never(), NoCache())

    def differs_from(self, recipe: Recipe) -> set[str]:
        """Return the choices in which the recipes differ."""
        names = [choice.name for choice in fields(recipe)]
        return {name for name in names if getattr(self.recipe, name) != getattr(recipe, name)}


@dataclass(frozen=True)
class BenchmarkArms:
    """The arms of a benchmark by their role in the paper. An arm without records is None or missing."""

    subject: str  # the model, as tables name it
    benchmark: str
    fixed: Arm | None = None  # the longest fixed canvas: the baseline, "w/o"
    survival: Arm | None = None  # the paper's prediction with the baseline's other parts, "w/"
    daedal: Arm | None = None
    stop: Arm | None = None  # the baseline with StopAtEnd
    default: Arm | None = None  # the default of `generate` on the baseline's canvas
    canvases: dict[int, Arm] = field(default_factory=dict)  # fixed canvases by their slots
    drift: list[Drift] = field(default_factory=list)

    @property
    def fixed_at_mean(self) -> Arm | None:
        """The fixed canvas of the mean predicted length: the paper's Table 3."""
        return self.canvases.get(mean_slots(self.survival.records)) if self.survival else None

    @property
    def task(self) -> str:
        """The benchmark, as tables name it."""
        return task_title(self.benchmark, [*(self.fixed.records if self.fixed else ()), *self.drift])


def benchmark_of(record: BaseRecord) -> str:
    """Return the paper's benchmark of a record, or else its task."""
    marks = (mark for name, mark in BENCHMARK.items() if record.task.startswith(name))
    return next(marks, record.task)


def task_title(benchmark: str, records: Iterable[BaseRecord]) -> str:
    """Return the title of a benchmark; an embedded family is not the benchmark that it stands for."""
    families = sorted({record.task for record in records if record.task in BENCHMARKS})
    return f"{families[0]} (for {benchmark})" if families else benchmark


def mean_slots(records: Sequence[Answer]) -> int:
    """Return the mean predicted horizon, rounded up: a fixed canvas of equal cost."""
    return math.ceil(sum(r.horizon for r in records) / len(records)) if records else 0


def answers(records: Iterable[Record], split: str = "test") -> list[Answer]:
    """Return the latest answers of a split."""
    return latest(record for record in records if isinstance(record, Answer) and record.split == split)


def arms_of(records: Sequence[Record]) -> list[BenchmarkArms]:
    """Return the arms of every model and benchmark on the test split, the paper's benchmarks first.

    Each benchmark has its own baseline, because a preset may use another recipe for each.
    """
    drift = latest(record for record in records if isinstance(record, Drift))
    arms = []
    counted: list[Record] = [*answers(records), *drift]
    for subject, own in by_subject(counted).items():
        groups: dict[str, list[Record]] = {}
        for record in own:
            groups.setdefault(benchmark_of(record), []).append(record)
        for benchmark in [*(b for b in ORDER if b in groups), *sorted(set(groups) - set(ORDER))]:
            arms.append(_find_arms(subject, benchmark, groups[benchmark]))
    return arms


def recipe_arms(records: Iterable[Answer]) -> list[Arm]:
    """Return an arm per recipe, in the order of first appearance."""
    return [Arm(recipe, own) for recipe, own in by_recipe(records).items()]


def _find_arms(subject: str, benchmark: str, records: Sequence[Record]) -> BenchmarkArms:
    arms = recipe_arms(record for record in records if isinstance(record, Answer))
    drift = [record for record in records if isinstance(record, Drift)]
    daedal = [arm for arm in arms if isinstance(arm.recipe.length, Daedal) and arm.is_plain]
    with_its_rule = [arm for arm in daedal if isinstance(arm.recipe.unmask, AboveThreshold)]
    found = BenchmarkArms(subject, benchmark, daedal=next(iter(with_its_rule + daedal), None), drift=drift)
    fixed = _find_baseline(arms)
    if fixed is None or fixed.slots is None:
        return found

    def with_length(length: object, choices: set[str] = LENGTH) -> Arm | None:
        """Return the baseline with another length; `StopAtEnd` and our default may add blocks."""
        matches = (a for a in arms if a.recipe.length == length and a.differs_from(fixed.recipe) <= choices)
        return next(matches, None)

    return replace(
        found,
        fixed=fixed,
        survival=with_length(Survival(fixed.slots)),
        stop=with_length(StopAtEnd(fixed.recipe.length), LENGTH | BLOCK),
        default=with_length(default_length(fixed.slots), LENGTH | BLOCK),
        canvases={arm.slots: arm for arm in arms if arm.slots and arm.differs_from(fixed.recipe) <= LENGTH},
    )


def _find_baseline(arms: Sequence[Arm]) -> Arm | None:
    """Return the longest fixed canvas with enough records, with the usual parts if there are several."""
    usual = Recipe.named("fixed")
    fixed = [arm for arm in arms if arm.slots and arm.is_plain]
    most = max((len(arm.records) for arm in fixed), default=0)
    candidates = [arm for arm in fixed if 2 * len(arm.records) >= most]
    return max(
        candidates, key=lambda arm: (arm.slots, len(arm.records), arm.differs_from(usual) <= LENGTH), default=None
    )


@cache
def _published_values() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def published(table: str, arms: BenchmarkArms) -> str:
    """Return what the paper reports for this kind of model and benchmark, or an empty text."""
    name = arms.subject.lower()
    family = "Dream" if "dream" in name else "LLaDA" if "llada" in name else ""
    kind = f"{family}{' Instruct' if 'instruct' in name else ''}"
    return _published_values()[table].get(kind, {}).get(arms.benchmark, "")


@dataclass(frozen=True)
class PaperTable:
    """A table whose cells are text, so that equal records give equal bytes."""

    name: str
    caption: str
    head: str  # column names, separated by bars
    rows: Rows

    @property
    def columns(self) -> list[str]:
        return self.head.split(" | ")

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * 2 + ["---:"] * (len(self.columns) - 2), *self.rows]
        body = "\n".join(f"| {' | '.join(map(escape_cell, line))} |" for line in lines)
        return f"**{self.name}.** {self.caption}\n\n{body}"

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def paper_tables(records: Sequence[Record], timed: Sequence[Record] | None = None) -> list[PaperTable]:
    """Return every table that the records have rows for; seconds are of `timed` if it is given."""
    arms, timed_arms = arms_of(records), arms_of(records if timed is None else timed)
    tables = [
        speed(timed_arms), accuracy(arms), fixed_mean(arms),
        daedal_speed(timed_arms), daedal_accuracy(arms), drift(arms), beyond(arms),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _rows(
    every: Sequence[BenchmarkArms],
    key: str,
    shared: Callable[[BenchmarkArms], Shared | None],
    cells: Callable[[Shared], Iterable[str]],
) -> Rows:
    """Return a row per benchmark whose arms can be compared: its names, `cells` and the published values."""
    rows = []
    for arms in every:
        if found := shared(arms):
            rows.append([arms.subject, arms.task, str(len(found[0])), *cells(found), published(key, arms)])
    return rows


def speed(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 1: seconds per sample without and with the prediction."""

    def cells(shared: Shared) -> Iterable[str]:
        base, other = shared
        passes, columns = _work(base, other, "forward_passes"), _work(base, other, "tokens_computed")
        return (_seconds(base), _speedup(base, other), f"{passes:.2f}", f"{columns:.2f}", _conditions(base))

    return _hoist_conditions(
        PaperTable(
            "Table 1",
            "Seconds a sample on the fixed canvas (w/o) and on the predicted one (w/); passes and columns as "
            "shares of the fixed canvas's, the probe included.",
            "model | task | n | w/o | w/ | passes | columns | measured on | paper: w/o, w/",
            _rows(every, "speed", lambda arms: _timed(arms.fixed, arms.survival), cells),
        )
    )


def accuracy(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 2: accuracy without and with the prediction, and the paired difference."""
    return PaperTable(
        "Table 2",
        "Accuracy in percent with its standard error, as harnesses report it; the difference on the "
        "same samples with its own error, and an exact paired test (McNemar).",
        "model | task | n | w/o | w/ | difference | p | paper: w/o, w/",
        _rows(
            every,
            "accuracy",
            lambda arms: _shared(arms.fixed, arms.survival),
            lambda shared: (*map(_accuracy, shared), *_difference(*shared)),
        ),
    )


def fixed_mean(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 3: one canvas of the mean predicted length, against the prediction."""
    rows: Rows = []
    for arms in every:
        pair = _shared(arms.survival, arms.fixed_at_mean)
        predicted = pair[0] if pair else arms.survival.records if arms.survival else []
        if predicted:
            horizons = [record.horizon for record in predicted]
            rows.append([
                arms.subject, arms.task, str(len(horizons)),
                f"{statistics.mean(horizons):.0f} ± {statistics.pstdev(horizons):.0f}",
                str(pair[1][0].horizon if pair else mean_slots(predicted)),
                *(_difference(*pair) if pair else ("not run", "")),
                published("fixed_mean", arms),
            ])  # fmt: skip
    return PaperTable(
        "Table 3",
        "Mean predicted length with its spread over prompts, and what a fixed canvas of that size does to "
        "the accuracy in percent, against the prediction itself.",
        "model | task | n | predicted | fixed at | difference | p | paper: predicted, difference",
        rows,
    )


def daedal_speed(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 4: seconds per sample of the baseline, DAEDAL and the paper's prediction."""
    rules: set[str] = set()

    def cells(shared: Shared) -> Iterable[str]:
        base, *others = shared
        rules.add(to_text(others[0][0].recipe.unmask).partition(":")[0])
        return (_seconds(base), *(_speedup(base, other) for other in others), _conditions(base))

    rows = _rows(every, "daedal_speed", lambda arms: _timed(arms.fixed, arms.daedal, arms.survival), cells)
    its_rule = "DAEDAL fills by its own rule, several tokens a pass; the others one."
    other_rule = f"DAEDAL filled by {', '.join(sorted(rules))}; its own rule is a threshold."
    return _hoist_conditions(
        PaperTable(
            "Table 4",
            f"Seconds a sample. {its_rule if rules == {'threshold'} else other_rule}",
            "model | task | n | w/o | DAEDAL | survival | measured on | paper: w/o, DAEDAL, survival",
            rows,
        )
    )


def daedal_accuracy(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 5: accuracy and costs of the arms of Table 4."""

    def cells(shared: Shared) -> Iterable[str]:
        base, *others = shared
        yield _accuracy(base)
        for other in others:
            yield f"{_accuracy(other)}, p = {_difference(base, other)[1]}"
            yield f"{_work(base, other, 'tokens_computed'):.3f}"

    return PaperTable(
        "Table 5",
        "Accuracy in percent, p of the paired difference to w/o, and columns as a share of its.",
        "model | task | n | w/o | DAEDAL | its columns | survival | its columns | paper: w/o, DAEDAL, survival",
        _rows(every, "daedal_accuracy", lambda arms: _shared(arms.fixed, arms.daedal, arms.survival), cells),
    )


def drift(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 6: the change of the expected length when it is read at a later step."""
    steps = sorted({step for arms in every for record in arms.drift for step in record.steps} - {0})
    rows: Rows = []
    for arms in every:
        expected = [record.steps for record in arms.drift]
        changes = [[own[step] - own[0] for own in expected if step in own] for step in steps]
        if expected:
            cells = map(mean_and_spread, changes)
            rows.append([arms.subject, arms.task, str(len(expected)), *cells, published("drift", arms)])
    return PaperTable(
        "Table 6",
        "Change of the expected length, in slots, when it is read after some denoising steps instead of "
        "before the first: mean and spread over prompts.",
        " | ".join(["model | task | n", *(f"step {s}" for s in steps), "paper: steps 2, 5, 7, 10"]),
        rows,
    )


def beyond(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 7, which the paper lacks: shorter fixed canvases, stopping, coverage and waste.

    Over all benchmarks of a model. An arm must have answered every sample of the baseline.
    """
    rows: Rows = []
    for subject in dict.fromkeys(arms.subject for arms in every):
        own = [arms for arms in every if arms.subject == subject and arms.fixed]
        slots = set.intersection(*(set(arms.canvases) for arms in own)) if own else set()
        roles: dict[str, list[Arm | None]] = {f"fixed {n}": [arms.canvases[n] for arms in own] for n in sorted(slots)}
        canvases = set(roles) if len(slots) > 1 else set()
        roles["stop at end"] = [arms.stop for arms in own]
        roles["survival"] = [arms.survival for arms in own]
        roles["DAEDAL"] = [arms.daedal for arms in own]
        roles["our default"] = [arms.default for arms in own]
        baseline = [record for arms in own if arms.fixed for record in arms.fixed.records]
        for name, parts in roles.items():
            records = [record for arm in parts if arm for record in arm.records]
            base, other = on_shared_samples(baseline, records) if baseline else ([], [])
            if not other or len(other) < len(baseline):
                continue
            difference = _difference(base, other) if other != base else ("", "")
            covered, waste = plan_fit(base, other) or (0.0, 0.0)
            if name in canvases and not _loses(base, other):
                name, canvases = f"{name}, the best", set()
            rows.append([
                subject, name, str(len(other)), _accuracy(other), *difference, f"{covered:.1%}",
                f"{waste:.0f}", f"{_work(base, other, 'forward_passes'):.2f}",
                f"{_work(base, other, 'tokens_computed'):.3f}",
            ])  # fmt: skip
    return PaperTable(
        "Table 7",
        "Not in the paper: shorter fixed canvases, stopping at an end token, and how well the planned "
        "canvas fits. Covered: answers of the longest fixed canvas, end token included, that the planned "
        "one has room for; waste: planned slots behind them, on average. The best fixed canvas is the "
        "shortest that loses at most a point, and not beyond chance (p < 0.05).",
        "model | canvas | n | accuracy | difference | p | covered | waste | passes | columns",
        rows,
    )


def _loses(base: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Return whether the other arm loses more than a point, or more than chance explains."""
    correct = [[record.correct for record in records] for records in (base, other)]
    lost = sum(correct[0]) - sum(correct[1])
    return lost > len(base) / 100 or (lost > 0 and paired_p(*correct) < 0.05)


def _shared(*arms: Arm | None) -> Shared | None:
    """Return the arms on their shared samples; None if there are none."""
    records = [arm.records for arm in arms if arm is not None]
    shared = on_shared_samples(*records) if len(records) == len(arms) else [[]]
    return shared if shared[0] else None


def _timed(*arms: Arm | None) -> Shared | None:
    """Return the arms on the samples that all were timed on, under the conditions of most samples."""
    records = [[r for r in arm.records if r.batch_seconds] for arm in arms if arm is not None]
    if len(records) < len(arms):
        return None
    conditions = dict.fromkeys(_conditions([record]) for record in records[0])
    groups = [
        on_shared_samples(*([r for r in own if _conditions([r]) == condition] for own in records))
        for condition in conditions
    ]
    groups.sort(key=lambda shared: len(shared[0]))
    return groups[-1] if groups and groups[-1][0] else None


def _conditions(records: Sequence[Answer]) -> str:
    """Return machine, dtype and batch size, which seconds depend on."""
    first = records[0]
    return f"{first.hardware}, {first.dtype}, {first.rows} at once"


def _hoist_conditions(table: PaperTable) -> PaperTable:
    """Move the measuring conditions from the rows to the caption if they are all equal."""
    at = table.columns.index("measured on")
    conditions = {row[at] for row in table.rows}
    if len(conditions) != 1:
        return table
    columns, *rows = ([*line[:at], *line[at + 1 :]] for line in [table.columns, *table.rows])
    caption = f"{table.caption} Measured on {conditions.pop()}."
    return replace(table, caption=caption, head=" | ".join(columns), rows=rows)


def _accuracy(records: Sequence[Answer]) -> str:
    scores = [record.score for record in records]
    return f"{100 * statistics.mean(scores):.1f} ± {100 * standard_error(scores):.1f}"


def _difference(base: Sequence[Answer], other: Sequence[Answer]) -> tuple[str, str]:
    """Return the paired difference in percent with its error, and its p."""
    differences = [o.score - b.score for b, o in zip(base, other, strict=True)]
    p = paired_p([record.correct for record in base], [record.correct for record in other])
    return f"{100 * statistics.mean(differences):+.1f} ± {100 * standard_error(differences):.1f}", f"{p:.2g}"


def _work(base: Sequence[Answer], other: Sequence[Answer], cost: Cost) -> float:
    """Return the cost as a share of the baseline's; NaN if that is 0, because no prompt fitted."""
    return total_cost(other, cost) / (total_cost(base, cost) or math.nan)


def _seconds(records: Sequence[Answer]) -> str:
    return f"{total_seconds(records) / len(records):.3g}"


def _speedup(base: Sequence[Answer], other: Sequence[Answer]) -> str:
    return f"{_seconds(other)} ({total_seconds(base) / (total_seconds(other) or math.nan):.1f}x)"
