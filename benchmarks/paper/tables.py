"""The tables of the survival paper from records, with its published values.

*Survival-Guided Length Control for Efficient Diffusion Language Models* (Kobyzev, Ghaddar, Cui). Costs are
given in forward passes and tokens computed as well as in seconds. Accuracy is compared on the samples that both
arms answered. The last table contains comparisons that the paper lacks.
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
TEXT_COLUMNS = ("model", "task", "canvas")
Rows = list[list[str]]
Shared = list[list[Answer]]  # the answers of several arms to the samples that all of them answered


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
    """Return the title of a benchmark; an embedded family replaces a benchmark of the paper."""
    families = {record.task for record in records if record.task in BENCHMARKS}
    return f"{families.pop()} (for {benchmark})" if len(families) == 1 else benchmark


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
    latest_records: list[Record] = [*answers(records), *drift]
    for subject, of_subject in by_subject(latest_records).items():
        groups: dict[str, list[Record]] = {}
        for record in of_subject:
            groups.setdefault(benchmark_of(record), []).append(record)
        for benchmark in [*(b for b in ORDER if b in groups), *sorted(set(groups) - set(ORDER))]:
            arms.append(_find_arms(subject, benchmark, groups[benchmark]))
    return arms


def recipe_arms(records: Iterable[Answer]) -> list[Arm]:
    """Return an arm per recipe, in the order of first appearance."""
    return [Arm(recipe, arm) for recipe, arm in by_recipe(records).items()]


def _find_arms(subject: str, benchmark: str, records: Sequence[Record]) -> BenchmarkArms:
    arms = recipe_arms(record for record in records if isinstance(record, Answer))
    drift = [record for record in records if isinstance(record, Drift)]
    daedal = [arm for arm in arms if isinstance(arm.recipe.length, Daedal) and arm.is_plain]
    with_its_rule = [arm for arm in daedal if isinstance(arm.recipe.unmask, AboveThreshold)]
    without_baseline = BenchmarkArms(subject, benchmark, daedal=next(iter(with_its_rule + daedal), None), drift=drift)
    fixed = _find_baseline(arms)
    if fixed is None or fixed.slots is None:
        return without_baseline

    def with_length(length: object, choices: set[str] = LENGTH) -> Arm | None:
        """Return the baseline with another length; `StopAtEnd` and our default may add blocks."""
        matches = (a for a in arms if a.recipe.length == length and a.differs_from(fixed.recipe) <= choices)
        return next(matches, None)

    return replace(
        without_baseline,
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
    max_records = max((len(arm.records) for arm in fixed), default=0)
    candidates = [arm for arm in fixed if 2 * len(arm.records) >= max_records]
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
    """A table of text cells; equal records give equal bytes."""

    name: str
    caption: str
    head: str  # column names, separated by bars
    rows: Rows

    @property
    def columns(self) -> list[str]:
        return self.head.split(" | ")

    def without(self, *names: str) -> PaperTable:
        """Return the table without some columns."""
        kept = [at for at, name in enumerate(self.columns) if name not in names]
        head = " | ".join(self.columns[at] for at in kept)
        return replace(self, head=head, rows=[[row[at] for at in kept] for row in self.rows])

    def markdown(self) -> str:
        alignment = ["---" if name in TEXT_COLUMNS else "---:" for name in self.columns]
        lines = [self.columns, alignment, *self.rows]
        body = "\n".join(f"| {' | '.join(map(escape_cell, line))} |" for line in lines)
        return f"**{self.name}.** {self.caption}\n\n{body}"

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def paper_tables(records: Sequence[Record], timed: Sequence[Record] | None = None) -> list[PaperTable]:
    """Return every table that the records have rows for; seconds are taken from `timed` if it is given."""
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
        if compared := shared(arms):
            rows.append([arms.subject, arms.task, str(len(compared[0])), *cells(compared), published(key, arms)])
    return rows


def speed(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 1: seconds per sample without and with the prediction."""

    def cells(shared: Shared) -> Iterable[str]:
        base, other = shared
        passes, tokens = _work(base, other, "forward_passes"), _work(base, other, "tokens_computed")
        return (_seconds(base), _speedup(base, other), f"{passes:.2f}", f"{tokens:.2f}", _conditions(base))

    left_out = LeftOut()
    rows = _rows(every, "speed", lambda arms: _timed(left_out, arms.fixed, arms.survival), cells)
    return _hoist_conditions(
        PaperTable(
            "Table 1",
            "Seconds per sample with the fixed canvas (w/o) and with the predicted one (w/); forward passes and "
            f"tokens computed as shares of w/o, the probe included.{left_out.sentence()}",
            "model | task | n | w/o | w/ | forward passes | tokens computed | measured on | paper: w/o, w/",
            rows,
        )
    )


def accuracy(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 2: accuracy without and with the prediction, and the paired difference."""
    return PaperTable(
        "Table 2",
        "Accuracy in percent with the standard error that evaluation harnesses report; the difference on the "
        "same samples with its standard error, and p of an exact paired test (McNemar).",
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
        "Mean and standard deviation of the predicted length over prompts, and the difference in accuracy, in "
        "points, between a fixed canvas of the mean and the prediction.",
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

    left_out = LeftOut()
    rows = _rows(every, "daedal_speed", lambda arms: _timed(left_out, arms.fixed, arms.daedal, arms.survival), cells)
    its_rule = "DAEDAL unmasks by its own rule, several tokens per forward pass; the others unmask one token."
    other_rule = f"DAEDAL unmasks by {', '.join(sorted(rules))}; its own rule is a threshold."
    return _hoist_conditions(
        PaperTable(
            "Table 4",
            f"Seconds per sample. {its_rule if rules == {'threshold'} else other_rule}{left_out.sentence()}",
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
        "Accuracy in percent, p of the paired difference from w/o, and tokens computed as a share of w/o.",
        "model | task | n | w/o | DAEDAL | its tokens | survival | its tokens | paper: w/o, DAEDAL, survival",
        _rows(every, "daedal_accuracy", lambda arms: _shared(arms.fixed, arms.daedal, arms.survival), cells),
    )


def drift(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 6: the change of the expected length at later steps."""
    steps = sorted({step for arms in every for record in arms.drift for step in record.steps} - {0})
    rows: Rows = []
    for arms in every:
        expected = [record.steps for record in arms.drift]
        changes = [[lengths[step] - lengths[0] for lengths in expected if step in lengths] for step in steps]
        if expected:
            cells = map(mean_and_spread, changes)
            rows.append([arms.subject, arms.task, str(len(expected)), *cells, published("drift", arms)])
    return PaperTable(
        "Table 6",
        "Change of the expected length, in slots, from before the first denoising step to a later one: mean and "
        "standard deviation over prompts.",
        " | ".join(["model | task | n", *(f"step {s}" for s in steps), "paper: steps 2, 5, 7, 10"]),
        rows,
    )


def beyond(every: Sequence[BenchmarkArms]) -> PaperTable:
    """Return Table 7, which the paper lacks: shorter fixed canvases, stopping, coverage and unused slots.

    Over all benchmarks of a model. An arm must have answered every sample of the baseline.
    """
    rows: Rows = []
    for subject in dict.fromkeys(arms.subject for arms in every):
        tasks = [arms for arms in every if arms.subject == subject and arms.fixed]
        slots = set.intersection(*(set(arms.canvases) for arms in tasks)) if tasks else set()
        roles: dict[str, list[Arm | None]] = {f"fixed {n}": [arms.canvases[n] for arms in tasks] for n in sorted(slots)}
        canvases = set(roles) if len(slots) > 1 else set()
        roles["stop at end"] = [arms.stop for arms in tasks]
        roles["survival"] = [arms.survival for arms in tasks]
        roles["DAEDAL"] = [arms.daedal for arms in tasks]
        roles["our default"] = [arms.default for arms in tasks]
        baseline = [record for arms in tasks if arms.fixed for record in arms.fixed.records]
        for name, parts in roles.items():
            records = [record for arm in parts if arm for record in arm.records]
            base, other = on_shared_samples(baseline, records) if baseline else ([], [])
            if not other or len(other) < len(baseline):
                continue
            difference = _difference(base, other) if other != base else ("", "")
            covered, unused = plan_fit(base, other) or (0.0, 0.0)
            if name in canvases and not _loses(base, other):
                name, canvases = f"{name}, the best", set()
            rows.append([
                subject, name, str(len(other)), _accuracy(other), *difference, f"{covered:.1%}",
                f"{unused:.0f}", f"{_work(base, other, 'forward_passes'):.2f}",
                f"{_work(base, other, 'tokens_computed'):.3f}",
            ])  # fmt: skip
    return PaperTable(
        "Table 7",
        "Not in the paper: shorter fixed canvases, stopping at the end token, and the fit of the planned canvas. "
        "Covered: share of the answers on the longest fixed canvas, end token included, that fit the planned one. "
        "Unused: mean number of planned slots after these answers. The best fixed canvas is the shortest one that "
        "loses at most one point, and not significantly (p < 0.05).",
        "model | canvas | n | accuracy | difference | p | covered | unused | forward passes | tokens computed",
        rows,
    )


def _loses(base: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Return whether the other arm loses more than one point, or loses significantly."""
    correct = [[record.correct for record in records] for records in (base, other)]
    lost = sum(correct[0]) - sum(correct[1])
    return lost > len(base) / 100 or (lost > 0 and paired_p(*correct) < 0.05)


def _shared(*arms: Arm | None) -> Shared | None:
    """Return the arms on their shared samples; None if there are none."""
    records = [arm.records for arm in arms if arm is not None]
    shared = on_shared_samples(*records) if len(records) == len(arms) else [[]]
    return shared if shared[0] else None


@dataclass
class LeftOut:
    """The number of samples that all arms answered and that a table of seconds leaves out, by reason."""

    untimed: int = 0
    other_conditions: int = 0

    def sentence(self) -> str:
        """Return a sentence for the caption with a leading space, or empty text if no sample is left out."""
        reasons = []
        if self.untimed:
            reasons.append(f"{self.untimed} were not timed in all arms")
        if self.other_conditions:
            reasons.append(f"{self.other_conditions} were timed on another machine or with another batch size or dtype")
        total = self.untimed + self.other_conditions
        return f" {total} samples are left out: {' and '.join(reasons)}." if reasons else ""


def _timed(left_out: LeftOut, *arms: Arm | None) -> Shared | None:
    """Return the arms on the samples that were timed in all arms under the most frequent conditions.

    The other samples that all arms answered are counted in `left_out`.
    """
    answered = _shared(*arms)
    if answered is None:
        return None
    timed = on_shared_samples(*([r for r in records if r.share_of_time] for records in answered))
    left_out.untimed += len(answered[0]) - len(timed[0])
    conditions = dict.fromkeys(_conditions([record]) for record in timed[0])
    groups = [
        on_shared_samples(*([r for r in records if _conditions([r]) == condition] for records in timed))
        for condition in conditions
    ]
    largest = max(groups, key=lambda shared: len(shared[0]), default=timed)
    left_out.other_conditions += len(timed[0]) - len(largest[0])
    return largest if largest[0] else None


def _conditions(records: Sequence[Answer]) -> str:
    """Return machine, dtype and batch size, which seconds depend on."""
    first = records[0]
    batch = "one prompt at a time" if first.rows == 1 else f"batches of {first.rows}"
    return f"{first.hardware}, {first.dtype}, {batch}"


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
