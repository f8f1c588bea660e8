"""The tables of the survival paper from records, its published values beside ours.

*Survival-Guided Length Control for Efficient Diffusion Language Models* (Kobyzev, Ghaddar, Cui). Work is
counted in columns besides seconds, accuracy is compared on the samples both arms answered, and a last table
holds what the paper does not compare with.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lastword.eval.arms import Arm, Arms, arms_of, mean_slots, said_as
from lastword.eval.compare import paired_p, standard_error
from lastword.eval.journal import Record
from lastword.eval.published import (
    ACCURACY,
    DAEDAL_ACCURACY,
    DAEDAL_SPEED,
    DRIFT,
    FIXED_MEAN,
    SPEED,
    published,
)
from lastword.eval.table import seconds, spent

Rows = list[list[str]]


@dataclass(frozen=True)
class Table:
    """One table: cells are text, so that the same records always make the same bytes."""

    name: str
    caption: str
    head: tuple[str, ...]
    rows: Rows

    def markdown(self) -> str:
        lines = [self.head, ["---"] * 2 + ["---:"] * (len(self.head) - 2), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.name}.** {self.caption}\n\n{body}"

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue()


def paper_tables(records: Sequence[Record]) -> list[Table]:
    """Every table the records have something for."""
    models, timed = arms_of(records), arms_of(records, timed=True)
    tables = [
        speed(timed), accuracy(models), fixed_mean(models),
        daedal_speed(timed), daedal_accuracy(models), drift(models), beyond(models),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def speed(models: Sequence[Arms]) -> Table:
    """Table 1: seconds a sample without and with the prediction."""

    def row(arms: Arms, benchmark: str) -> list[str] | None:
        pair = _shared(benchmark, arms.fixed, arms.survival)
        if pair is None:
            return None
        without, with_ = (_seconds(arm.records) for arm in pair)
        return [
            str(len(pair[0].records)), f"{without:.3g}", f"{with_:.3g} ({without / with_:.1f}x)",
            f"{_work(pair[0], pair[1], 'passes'):.2f}", f"{_work(pair[0], pair[1], 'columns'):.2f}",
            _measured_on(pair[0]), published(SPEED, arms.model, benchmark),
        ]  # fmt: skip

    return Table(
        "Table 1",
        "Seconds a sample on the fixed canvas (w/o) and on the predicted one (w/); passes and columns as "
        "shares of the fixed canvas's, the probe included.",
        ("model", "task", "n", "w/o", "w/", "passes", "columns", "measured on", "paper: w/o, w/"),
        _rows(models, row),
    )


def accuracy(models: Sequence[Arms]) -> Table:
    """Table 2: accuracy without and with, the standard error, and the paired difference."""

    def row(arms: Arms, benchmark: str) -> list[str] | None:
        pair = _shared(benchmark, arms.fixed, arms.survival)
        if pair is None:
            return None
        return [
            str(len(pair[0].records)), _share(pair[0]), _share(pair[1]), *_compared(pair[0], pair[1]),
            published(ACCURACY, arms.model, benchmark),
        ]  # fmt: skip

    return Table(
        "Table 2",
        "Accuracy in percent with its standard error, as harnesses report it; the difference on the "
        "same samples with its own error, and an exact paired test (McNemar).",
        ("model", "task", "n", "w/o", "w/", "difference", "p", "paper: w/o, w/"),
        _rows(models, row),
    )


def fixed_mean(models: Sequence[Arms]) -> Table:
    """Table 3: one canvas of the mean predicted length for all, against the prediction."""

    def row(arms: Arms, benchmark: str) -> list[str] | None:
        pair = _shared(benchmark, arms.survival, arms.fixed_at_mean(benchmark))
        if pair is None:
            return None
        horizons = [r["horizon"] for r in pair[0].records]
        spread = f"{statistics.mean(horizons):.0f} ± {statistics.pstdev(horizons):.0f}"
        return [
            spread, str(mean_slots(pair[0].records)), *_compared(pair[0], pair[1]),
            published(FIXED_MEAN, arms.model, benchmark),
        ]  # fmt: skip

    return Table(
        "Table 3",
        "Mean predicted length with its spread over prompts, and what a fixed canvas of that size does to "
        "the accuracy in percent, against the prediction itself.",
        (
            "model",
            "task",
            "predicted",
            "fixed at",
            "difference",
            "p",
            "paper: predicted, difference",
        ),
        _rows(models, row),
    )


def daedal_speed(models: Sequence[Arms]) -> Table:
    """Table 4: seconds a sample of the baseline, DAEDAL and the paper's prediction."""

    def row(arms: Arms, benchmark: str) -> list[str] | None:
        three = _shared(benchmark, arms.fixed, arms.daedal, arms.survival)
        if three is None:
            return None
        base, *others = (_seconds(arm.records) for arm in three)
        return [
            str(len(three[0].records)), f"{base:.3g}",
            *(f"{own:.3g} ({base / own:.1f}x)" for own in others),
            _measured_on(three[0]), published(DAEDAL_SPEED, arms.model, benchmark),
        ]  # fmt: skip

    return Table(
        "Table 4",
        "Seconds a sample. DAEDAL fills by its own rule, several tokens a pass; the others one.",
        (
            "model",
            "task",
            "n",
            "w/o",
            "DAEDAL",
            "survival",
            "measured on",
            "paper: w/o, DAEDAL, survival",
        ),
        _rows(models, row),
    )


def daedal_accuracy(models: Sequence[Arms]) -> Table:
    """Table 5: accuracy of the same three, and their work."""

    def row(arms: Arms, benchmark: str) -> list[str] | None:
        three = _shared(benchmark, arms.fixed, arms.daedal, arms.survival)
        if three is None:
            return None
        base, *others = three
        cells = [str(len(base.records)), _share(base)]
        for arm in others:
            _, p = _compared(base, arm)
            cells += [f"{_share(arm)}, p = {p}", f"{_work(base, arm, 'columns'):.3f}"]
        return [*cells, published(DAEDAL_ACCURACY, arms.model, benchmark)]

    return Table(
        "Table 5",
        "Accuracy in percent, p of the paired difference to w/o, and columns as a share of its.",
        (
            "model",
            "task",
            "n",
            "w/o",
            "DAEDAL",
            "its columns",
            "survival",
            "its columns",
            "paper: w/o, DAEDAL, survival",
        ),
        _rows(models, row),
    )


def drift(models: Sequence[Arms]) -> Table:
    """Table 6: how far the expected length moves when a later step is read."""
    steps = sorted({int(s) for a in models for r in a.drift for s in r["expected"]} - {0})
    rows: Rows = []
    for arms in models:
        by_mark = {b: Arm({}, arms.drift).of(b).records for b in arms.benchmarks}
        for benchmark, mine in by_mark.items():
            cells = []
            for step in steps:
                moved = [r["expected"][str(step)] - r["expected"]["0"] for r in mine
                         if str(step) in r["expected"]]  # fmt: skip
                cells.append(_spread(moved) if moved else "")
            if mine:
                paper = published(DRIFT, arms.model, benchmark)
                rows.append([arms.model, said_as(benchmark, mine), *cells, paper])
    return Table(
        "Table 6",
        "Change of the expected length, in slots, when it is read after some denoising steps instead of "
        "before the first: mean and spread over prompts.",
        ("model", "task", *(f"step {s}" for s in steps), "paper: steps 2, 5, 7, 10"),
        rows,
    )


def beyond(models: Sequence[Arms]) -> Table:
    """What the paper does not compare with: shorter fixed canvases, stopping, coverage and waste."""
    rows: Rows = []
    for arms in models:
        if arms.fixed is None:
            continue
        most = max(len(arm.records) for arm in arms.canvases.values())
        others: list[tuple[str, Arm | None]] = [
            (f"fixed {slots}", arm)
            for slots, arm in sorted(arms.canvases.items())
            if len(arm.records) == most
        ]
        others += [("stop at end", arms.stop), ("survival", arms.survival), ("DAEDAL", arms.daedal)]
        for name, arm in others:
            pair = _shared(None, arms.fixed, arm)
            if pair is None:
                continue
            difference, p = _compared(pair[0], pair[1]) if arm is not arms.fixed else ("", "")
            covered, waste = coverage(pair[0], pair[1])
            rows.append([
                arms.model, name, str(len(pair[1].records)), _share(pair[1]), difference, p,
                f"{covered:.1%}", f"{waste:.0f}",
                f"{_work(pair[0], pair[1], 'passes'):.2f}", f"{_work(pair[0], pair[1], 'columns'):.3f}",
            ])  # fmt: skip
    return Table(
        "Table 7",
        "Not in the paper: shorter fixed canvases, stopping at an end token, and how well the planned "
        "canvas fits. Covered: answers of the longest fixed canvas, end token included, that the planned "
        "one has room for; waste: planned slots behind them, on average.",
        (
            "model",
            "canvas",
            "n",
            "accuracy",
            "difference",
            "p",
            "covered",
            "waste",
            "passes",
            "columns",
        ),
        rows,
    )


def coverage(base: Arm, other: Arm) -> tuple[float, float]:
    """Of the answers the baseline finished: the share the other's plan has room for, and its spare slots."""
    needed = {
        (r["task"], r["place"]): r["length"] + 1 for r in base.records if r["finish"] == "ended"
    }
    room = [
        r["horizon"] - needed[key]
        for r in other.records
        if (key := (r["task"], r["place"])) in needed
    ]
    if not room:
        return 0.0, 0.0
    return sum(spare >= 0 for spare in room) / len(room), sum(max(s, 0) for s in room) / len(room)


def _rows(models: Sequence[Arms], row: Callable[[Arms, str], list[str] | None]) -> Rows:
    found: Rows = []
    for arms in models:
        for benchmark in arms.benchmarks:
            cells = row(arms, benchmark)
            if cells is not None:
                named = said_as(benchmark, (arms.fixed or Arm({}, [])).of(benchmark).records)
                found.append([arms.model, named, *cells])
    return found


def _shared(benchmark: str | None, *arms: Arm | None) -> list[Arm] | None:
    """The arms on the samples all of them answered, of one benchmark or of all; None if there are none."""
    there = [arm if benchmark is None else arm.of(benchmark) for arm in arms if arm is not None]
    keys = set.intersection(*(set(arm.scores) for arm in there)) if len(there) == len(arms) else ()
    if not keys:
        return None
    return [
        Arm(arm.recipe, [r for r in arm.records if (r["task"], r["place"]) in keys])
        for arm in there
    ]


def _share(arm: Arm) -> str:
    scores = list(arm.scores.values())
    return f"{100 * statistics.mean(scores):.1f} ± {100 * standard_error(scores):.1f}"


def _compared(base: Arm, other: Arm) -> tuple[str, str]:
    keys = sorted(base.scores)
    before, after = [base.scores[k] for k in keys], [other.scores[k] for k in keys]
    moved = [b - a for a, b in zip(before, after)]
    p = paired_p([s > 0.5 for s in before], [s > 0.5 for s in after])
    return f"{100 * statistics.mean(moved):+.1f} ± {100 * standard_error(moved):.1f}", f"{p:.2g}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):+.1f} ± {statistics.pstdev(values):.1f}"


def _work(base: Arm, other: Arm, what: str) -> float:
    return spent(other.records, what) / spent(base.records, what)


def _seconds(records: Sequence[Record]) -> float:
    return seconds(records) / len(records)


def _measured_on(arm: Arm) -> str:
    """Machine, number format and rows at once: without them a second says nothing."""
    some = arm.records[0]
    return f"{some['hardware']}, {some['dtype']}, {some['rows']} at once"
