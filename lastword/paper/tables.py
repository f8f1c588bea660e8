"""The tables of the survival paper from records, its published values beside ours.

*Survival-Guided Length Control for Efficient Diffusion Language Models* (Kobyzev, Ghaddar, Cui). Spent is
counted in columns besides seconds, accuracy is compared on the samples both arms answered, and a last table
holds what the paper does not compare with.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lastword.evaluate.records import Answer, Record
from lastword.paper.arms import Arm, Arms, arms_of, mean_slots
from lastword.paper.compare import paired_p, standard_error
from lastword.paper.overview import cell, seconds, spent
from lastword.paper.pairing import lengths_written, on_shared, sample_of
from lastword.paper.published import (
    ACCURACY,
    DAEDAL_ACCURACY,
    DAEDAL_SPEED,
    DRIFT,
    FIXED_MEAN,
    SPEED,
    published,
)
from lastword.recipe.text import to_text

Rows = list[list[str]]


@dataclass(frozen=True)
class Table:
    """One table: cells are text, so that the same records always make the same bytes."""

    name: str
    caption: str
    head: str  # column names, parted by bars
    rows: Rows

    @property
    def columns(self) -> list[str]:
        return self.head.split(" | ")

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * 2 + ["---:"] * (len(self.columns) - 2), *self.rows]
        body = "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)
        return f"**{self.name}.** {self.caption}\n\n{body}"

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def paper_tables(records: Sequence[Record], timed: Sequence[Record] | None = None) -> list[Table]:
    """Every table the records have something for; seconds from `timed`, if those are others."""
    arms, clocked = arms_of(records), arms_of(records if timed is None else timed)
    tables = [
        speed(clocked), accuracy(arms), fixed_mean(arms),
        daedal_speed(clocked), daedal_accuracy(arms), drift(arms), beyond(arms),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def speed(every: Sequence[Arms]) -> Table:
    """Table 1: seconds a sample without and with the prediction."""
    rows: Rows = []
    for arms in every:
        pair = _clocked(arms.fixed, arms.survival)
        if pair is not None:
            base, other = pair
            rows.append([
                arms.subject, arms.task, str(len(base)), _seconds(base), _faster(base, other),
                f"{_work(base, other, 'passes'):.2f}", f"{_work(base, other, 'columns'):.2f}",
                _measured_on(base), published(SPEED, arms.subject, arms.benchmark),
            ])  # fmt: skip
    return _machine_said_once(
        Table(
            "Table 1",
            "Seconds a sample on the fixed canvas (w/o) and on the predicted one (w/); passes and columns as "
            "shares of the fixed canvas's, the probe included.",
            "model | task | n | w/o | w/ | passes | columns | measured on | paper: w/o, w/",
            rows,
        )
    )


def accuracy(every: Sequence[Arms]) -> Table:
    """Table 2: accuracy without and with, the standard error, and the paired difference."""
    rows: Rows = []
    for arms in every:
        pair = _together(arms.fixed, arms.survival)
        if pair is not None:
            base, other = pair
            rows.append([
                arms.subject, arms.task, str(len(base)), _share(base), _share(other),
                *_compared(base, other), published(ACCURACY, arms.subject, arms.benchmark),
            ])  # fmt: skip
    return Table(
        "Table 2",
        "Accuracy in percent with its standard error, as harnesses report it; the difference on the "
        "same samples with its own error, and an exact paired test (McNemar).",
        "model | task | n | w/o | w/ | difference | p | paper: w/o, w/",
        rows,
    )


def fixed_mean(every: Sequence[Arms]) -> Table:
    """Table 3: one canvas of the mean predicted length for all, against the prediction."""
    rows: Rows = []
    for arms in every:
        pair = _together(arms.survival, arms.fixed_at_mean)
        predicted = pair[0] if pair else arms.survival.records if arms.survival else []
        if predicted:
            horizons = [r.horizon for r in predicted]
            rows.append([
                arms.subject, arms.task, str(len(horizons)),
                f"{statistics.mean(horizons):.0f} ± {statistics.pstdev(horizons):.0f}",
                str(pair[1][0].horizon if pair else mean_slots(predicted)),
                *(_compared(*pair) if pair else ("not run", "")),
                published(FIXED_MEAN, arms.subject, arms.benchmark),
            ])  # fmt: skip
    return Table(
        "Table 3",
        "Mean predicted length with its spread over prompts, and what a fixed canvas of that size does to "
        "the accuracy in percent, against the prediction itself.",
        "model | task | n | predicted | fixed at | difference | p | paper: predicted, difference",
        rows,
    )


def daedal_speed(every: Sequence[Arms]) -> Table:
    """Table 4: seconds a sample of the baseline, DAEDAL and the paper's prediction."""
    rows: Rows = []
    rules: set[str] = set()
    for arms in every:
        three = _clocked(arms.fixed, arms.daedal, arms.survival)
        if three is not None:
            base, *others = three
            rules.add(to_text(others[0][0].recipe.unmask).partition(":")[0])
            rows.append([
                arms.subject, arms.task, str(len(base)), _seconds(base),
                *(_faster(base, other) for other in others),
                _measured_on(base), published(DAEDAL_SPEED, arms.subject, arms.benchmark),
            ])  # fmt: skip
    return _machine_said_once(
        Table(
            "Table 4",
            "Seconds a sample. "
            + (
                "DAEDAL fills by its own rule, several tokens a pass; the others one."
                if rules == {"threshold"}
                else f"DAEDAL filled by {', '.join(sorted(rules))}; its own rule is a threshold."
            ),
            "model | task | n | w/o | DAEDAL | survival | measured on | paper: w/o, DAEDAL, survival",
            rows,
        )
    )


def daedal_accuracy(every: Sequence[Arms]) -> Table:
    """Table 5: accuracy of the same three, and their work."""
    rows: Rows = []
    for arms in every:
        three = _together(arms.fixed, arms.daedal, arms.survival)
        if three is not None:
            base, *others = three
            cells = [arms.subject, arms.task, str(len(base)), _share(base)]
            for other in others:
                _, p = _compared(base, other)
                cells += [f"{_share(other)}, p = {p}", f"{_work(base, other, 'columns'):.3f}"]
            rows.append([*cells, published(DAEDAL_ACCURACY, arms.subject, arms.benchmark)])
    return Table(
        "Table 5",
        "Accuracy in percent, p of the paired difference to w/o, and columns as a share of its.",
        "model | task | n | w/o | DAEDAL | its columns | survival | its columns "
        "| paper: w/o, DAEDAL, survival",
        rows,
    )


def drift(every: Sequence[Arms]) -> Table:
    """Table 6: how far the expected length moves when a later step is read."""
    steps = sorted({step for arms in every for r in arms.drift for step in r.steps} - {0})
    rows: Rows = []
    for arms in every:
        expected = [record.steps for record in arms.drift]
        moved = [[e[step] - e[0] for e in expected if step in e] for step in steps]
        if expected:
            cells = [_spread(some) if some else "" for some in moved]
            paper = published(DRIFT, arms.subject, arms.benchmark)
            rows.append([arms.subject, arms.task, str(len(expected)), *cells, paper])
    return Table(
        "Table 6",
        "Change of the expected length, in slots, when it is read after some denoising steps instead of "
        "before the first: mean and spread over prompts.",
        " | ".join(["model | task | n", *(f"step {s}" for s in steps), "paper: steps 2, 5, 7, 10"]),
        rows,
    )


def beyond(every: Sequence[Arms]) -> Table:
    """What the paper does not compare with: shorter fixed canvases, stopping, coverage and waste.

    Over all benchmarks of a model; an arm must have answered all that the baseline did.
    """
    rows: Rows = []
    for subject in dict.fromkeys(arms.subject for arms in every):
        mine = [arms for arms in every if arms.subject == subject and arms.fixed]
        slots = set.intersection(*(set(arms.canvases) for arms in mine)) if mine else set()
        canvases: dict[str, list[Arm | None]] = {
            f"fixed {n}": [arms.canvases[n] for arms in mine] for n in sorted(slots)
        }
        roles = dict(canvases)
        roles["stop at end"] = [arms.stop for arms in mine]
        roles["survival"] = [arms.survival for arms in mine]
        roles["DAEDAL"] = [arms.daedal for arms in mine]
        roles["our default"] = [arms.default for arms in mine]
        base = [r for arms in mine if arms.fixed for r in arms.fixed.records]
        enough = False  # once a fixed canvas does as well as the longest
        for name, parts in roles.items():
            other = [r for arm in parts if arm for r in arm.records]
            shared, own = on_shared(base, other) if base else ([], [])
            if not own or len(own) < len(base):
                continue
            compared = _compared(shared, own) if own != shared else ("", "")
            covered, waste = coverage(shared, own)
            if name in canvases and len(slots) > 1 and not (enough or _loses(shared, own)):
                name, enough = f"{name}, the best", True
            rows.append([
                subject, name, str(len(own)), _share(own), *compared, f"{covered:.1%}",
                f"{waste:.0f}", f"{_work(shared, own, 'passes'):.2f}",
                f"{_work(shared, own, 'columns'):.3f}",
            ])  # fmt: skip
    return Table(
        "Table 7",
        "Not in the paper: shorter fixed canvases, stopping at an end token, and how well the planned "
        "canvas fits. Covered: answers of the longest fixed canvas, end token included, that the planned "
        "one has room for; waste: planned slots behind them, on average. The best fixed canvas is the "
        "shortest that loses at most a point, and not beyond chance (p < 0.05).",
        "model | canvas | n | accuracy | difference | p | covered | waste | passes | columns",
        rows,
    )


def _loses(base: Sequence[Answer], other: Sequence[Answer]) -> bool:
    """Is the other worse by more than a point, or beyond chance? Few samples cannot say the latter."""
    right = [[r.right for r in records] for records in (base, other)]
    lost = sum(right[0]) - sum(right[1])
    return lost > len(base) / 100 or (lost > 0 and paired_p(*right) < 0.05)


def coverage(base: Sequence[Answer], other: Sequence[Answer]) -> tuple[float, float]:
    """Of the answers the baseline finished: the share the other's plan has room for, and its spare slots."""
    needed = lengths_written(base)
    room = [r.horizon - needed[key] for r in other if (key := sample_of(r)) in needed]
    if not room:
        return 0.0, 0.0
    return sum(spare >= 0 for spare in room) / len(room), sum(max(s, 0) for s in room) / len(room)


def _together(*arms: Arm | None) -> list[list[Answer]] | None:
    """Arms on the samples all of them answered, of one benchmark; None if one is missing."""
    there = [arm.records for arm in arms if arm is not None]
    shared = on_shared(*there) if len(there) == len(arms) else [[]]
    return shared if shared[0] else None


def _clocked(*arms: Arm | None) -> list[list[Answer]] | None:
    """The same with seconds, measured in one way; the way that most samples were measured in."""
    there = [[r for r in arm.records if r.batch_seconds] for arm in arms if arm is not None]
    if len(there) < len(arms):
        return None
    ways = dict.fromkeys(_way(record) for record in there[0])
    found = [on_shared(*([r for r in own if _way(r) == way] for own in there)) for way in ways]
    found.sort(key=lambda shared: len(shared[0]))
    return found[-1] if found and found[-1][0] else None


def _way(record: Answer) -> tuple[str, str, int]:
    return record.hardware, record.dtype, record.rows


def _machine_said_once(table: Table) -> Table:
    """Where every line was measured on the same machine, the caption says so and no line does."""
    at = table.columns.index("measured on")
    machines = {row[at] for row in table.rows}
    if len(machines) != 1:
        return table
    columns, *rows = (
        [cell for index, cell in enumerate(line) if index != at] for line in [table.columns, *table.rows]
    )
    caption = f"{table.caption} Measured on {machines.pop()}."
    return replace(table, caption=caption, head=" | ".join(columns), rows=rows)


def _measured_on(records: Sequence[Answer]) -> str:
    """Machine, number format and rows at once: without them a second says nothing."""
    hardware, dtype, rows = _way(records[0])
    return f"{hardware}, {dtype}, {rows} at once"


def _share(records: Sequence[Answer]) -> str:
    scores = [r.score for r in records]
    return f"{100 * statistics.mean(scores):.1f} ± {100 * standard_error(scores):.1f}"


def _compared(base: Sequence[Answer], other: Sequence[Answer]) -> tuple[str, str]:
    """The paired difference in percent with its error, and its p; records of the same samples."""
    moved = [o.score - b.score for b, o in zip(base, other, strict=True)]
    p = paired_p([r.right for r in base], [r.right for r in other])
    return f"{100 * statistics.mean(moved):+.1f} ± {100 * standard_error(moved):.1f}", f"{p:.2g}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):+.1f} ± {statistics.pstdev(values):.1f}"


def _work(base: Sequence[Answer], other: Sequence[Answer], what: Literal["passes", "columns"]) -> float:
    """Spent as a share of the baseline's; NaN where no prompt of that fitted, so that it spent nothing."""
    return spent(other, what) / (spent(base, what) or math.nan)


def _seconds(records: Sequence[Answer]) -> str:
    return f"{seconds(records) / len(records):.3g}"


def _faster(base: Sequence[Answer], other: Sequence[Answer]) -> str:
    return f"{_seconds(other)} ({seconds(base) / (seconds(other) or math.nan):.1f}x)"
