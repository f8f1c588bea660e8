"""Tables of records: grouping of comparable records, paired tests, and one table per benchmark."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, TypeVar

from lastword.engines.base import TOO_LONG
from lastword.engines.local import MIN_SLOTS
from lastword.evaluate.records import IDENTITY, Answer, BaseRecord, Drift, Record
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.policy import ModelLimits
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES
from lastword.recipe.resolve import default_block
from lastword.sandbox.runner import sandbox_summary

COLUMNS = (
    "model", "recipe", "n", "mean slots", "accuracy", "difference", "truncated", "forward passes", "tokens computed",
    "seconds",
)  # fmt: skip
FIT_COLUMNS = ("covered", "waste")
DRIFT_TITLE = "Change of the expected length, in slots, when it is read after some denoising steps"
SUBJECT = ("weights", "dtype", "seed", "layout")  # answers are compared only if these agree
Cost = Literal["forward_passes", "tokens_computed"]
SampleKey = tuple[str, str, int]
AnyRecord = TypeVar("AnyRecord", bound=BaseRecord)
# Published records have no digest of the prompt, and may be read together with the journal that they came from.
_identity_in_arm = attrgetter(*(name for name in IDENTITY if name not in ("recipe", "prompt")))


def sample_key(record: BaseRecord) -> SampleKey:
    """Return the task, task version and index of a record, which identify its sample."""
    return record.task, record.task_version, record.index


def latest(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Return the last record of each `identity`, because a folder may contain copies."""
    return [
        record
        for arm in by_recipe(records).values()
        for record in {_identity_in_arm(record): record for record in arm}.values()
    ]


def by_recipe(records: Iterable[AnyRecord]) -> dict[Recipe, list[AnyRecord]]:
    """Group records by recipe, in the order of first appearance."""
    groups: dict[Recipe, list[AnyRecord]] = {}
    by_id: dict[int, list[AnyRecord]] = {}  # records share recipe objects, and hashing a recipe is slow
    for record in records:
        group = by_id.get(id(record.recipe))
        if group is None:
            group = by_id[id(record.recipe)] = groups.setdefault(record.recipe, [])
        group.append(record)
    return groups


def by_subject(records: Iterable[AnyRecord]) -> dict[str, list[AnyRecord]]:
    """Group records by model, and by weights, dtype, seed or layout where a model has several; keys are titles."""
    models: dict[str, dict[tuple[str, ...], list[AnyRecord]]] = {}
    for record in records:
        subject = (record.weights, record.dtype, str(record.seed), record.layout)
        models.setdefault(record.model, {}).setdefault(subject, []).append(record)
    groups = {}
    for model, subjects in models.items():
        differing = [at for at in range(len(SUBJECT)) if len({values[at] for values in subjects}) > 1]
        for values, group in subjects.items():
            details = ", ".join(f"{SUBJECT[at]} {values[at]}" for at in differing)
            groups[f"{model} ({details})" if details else model] = group
    return groups


def on_shared_samples(*arms: Sequence[AnyRecord]) -> list[list[AnyRecord]]:
    """Return the records of each arm for the samples that all arms have, in the same order."""
    by_sample = [{sample_key(record): record for record in arm} for arm in arms]
    keys = [key for key in by_sample[0] if all(key in other for other in by_sample)]
    return [[arm[key] for key in keys] for arm in by_sample]


def finished_lengths(records: Iterable[Answer]) -> dict[SampleKey, int]:
    """Return the length of each answer that ended, its end token included, by sample."""
    ended = [record for record in records if record.finish == "ended"]
    return {sample_key(r): r.length + 1 for r in ended if r.length is not None}


def paired_p(base: Sequence[bool], other: Sequence[bool]) -> float:
    """Return the p-value of the exact two-sided McNemar test that wins and losses are equally likely.

    >>> paired_p([True] * 10, [True] * 10), paired_p([True] * 10, [False] * 10)
    (1.0, 0.001953125)
    """
    wins = sum(o and not b for b, o in zip(base, other))
    losses = sum(b and not o for b, o in zip(base, other))
    count = wins + losses
    tail = sum(math.comb(count, at) for at in range(min(wins, losses) + 1)) / 2**count
    return min(1.0, 2 * tail)


def recipe_title(recipe: Recipe) -> str:
    """Return the name and the limit of a named recipe, or the parts of any other recipe.

    >>> recipe_title(Recipe(length=Fixed(256))), recipe_title(Recipe(length=Fixed(256), block=32))
    ('fixed, 256 slots', 'fixed:256, block 32')
    """
    limits = ModelLimits(combined_traits(recipe.length).upper_bound)
    for name in RECIPES:
        named = Recipe.named(name)
        if replace(named, length=named.length.resolved(limits), block=default_block(named)) == recipe:
            return f"{name}, {limits.max_new_tokens} slots"
    return recipe.label()


def standard_error(scores: Sequence[float]) -> float:
    """Return the standard error of the mean score, with n - 1 in the variance; 0 for one score."""
    n = len(scores)
    mean = sum(scores) / n
    return math.sqrt(sum((s - mean) ** 2 for s in scores) / (n - 1) / n) if n > 1 else 0.0


def total_cost(records: Sequence[Answer], cost: Cost) -> int | float:
    """Return the total cost of all records, probes included; NaN if the cost of a record is unknown."""
    if any(record.cost is None for record in records):
        return math.nan
    return sum(getattr(record, cost) for record in records)


def total_seconds(records: Sequence[Answer]) -> float:
    """Return the sum of each record's share of the time; unknown seconds count as 0."""
    return math.fsum(record.share_of_time or 0.0 for record in records)


@dataclass(frozen=True)
class Table:
    """A titled table whose cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return title, table and note as Markdown; the columns from the third on are aligned to the right."""
        head, *rows = (f"| {' | '.join(map(escape_cell, cells))} |" for cells in (self.columns, *self.rows))
        lines = [head, "|---|---|" + "---:|" * (len(self.columns) - 2), *rows]
        return "\n\n".join(filter(None, (_printable(self.title), "\n".join(lines), self.note)))

    def csv(self) -> str:
        """Return the columns and rows as comma-separated values, without title and note."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def file_name(title: str) -> str:
    """Return a file name for a table, without a suffix.

    >>> file_name("tiny (version 1; plain)")
    'tiny-version-1-plain'
    """
    return re.sub(r"[^a-z0-9._]+", "-", title.lower())[:100].strip("-")


def escape_cell(text: str) -> str:
    """Return text escaped for one cell of a Markdown table.

    >>> escape_cell("my|model\\n")
    'my\\\\|model '
    """
    return _printable(text).replace("|", "\\|")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def tables(
    records: Sequence[Record], timed: Sequence[Record] | None = None, *, against_fixed: bool = False
) -> list[Table]:
    """Return a table per benchmark, split, task version and layout, and one for the drift records, if there are any.

    Recipes are compared with the first recipe of the same model; with `against_fixed`, with the longest fixed
    canvas, and two more columns show how well plans fit its answers. Seconds are those of `timed`, if given.
    """
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for record in (record for record in records if isinstance(record, Answer)):
        groups.setdefault((record.group, record.split, record.task_version, record.layout), []).append(record)
    seconds = None if timed is None else [record for record in timed if isinstance(record, Answer)]
    made = []
    for (group, split, version, layout), answers in sorted(groups.items()):
        names = len({record.task for record in answers})
        details = (f"{names} tasks" if names > 1 else "", "" if split == "test" else split, version, layout)
        title = f"{group} ({'; '.join(filter(None, details))})"
        answers = _fixed_first(answers) if against_fixed else answers
        made.append(recipe_table(answers, title, timed=seconds, fit=against_fixed, note=too_long_summary(answers)))
    drifts = latest(record for record in records if isinstance(record, Drift))
    return [*made, drift_table(drifts)] if drifts else made


def _fixed_first(records: Sequence[Answer]) -> list[Answer]:
    """Return the same records, those of the longest fixed canvas first."""
    slots = {recipe: recipe.length.slots or 0 for recipe in by_recipe(records) if isinstance(recipe.length, Fixed)}
    first = max(slots, key=slots.__getitem__, default=None)
    return sorted(records, key=lambda record: record.recipe != first)


def recipe_table(
    records: Sequence[Answer],
    title: str = "",
    *,
    titles: Mapping[Recipe, str] | None = None,
    timed: Sequence[Answer] | None = None,
    fit: bool = False,
    note: str = "",
) -> Table:
    """Return a table with a row per model and recipe, which is compared with the model's first recipe.

    Differences and costs are computed on the samples that both recipes answered, seconds from `timed` if it is given;
    the note counts the samples that are left out. `titles` replaces labels of recipes. "truncated" is the share of
    answers without an end token. With `fit`, "covered" is the share of the first recipe's answers that fit the plans,
    and "waste" is the mean number of unused slots.
    """
    rows, baselines = list[list[str]](), dict[str, tuple[Recipe, list[Answer]]]()
    notes = [note]
    timed_arms = None if timed is None else _by_subject_and_recipe(timed)
    for (subject, recipe), arm in _by_subject_and_recipe(records).items():
        base_recipe, base_arm = baselines.setdefault(subject, (recipe, arm))
        base, other = on_shared_samples(base_arm, arm)
        name = (titles or {}).get(recipe) or recipe_title(recipe)
        if left_out := len(base_arm) + len(arm) - 2 * len(base):
            notes.append(
                f"{subject}, {name}: difference and costs are computed on {len(base)} samples; {left_out} others were "
                "answered by one of the two recipes only."
            )
        scores = [record.score for record in arm]
        difference = "" if arm is base_arm else describe_difference(base, other)
        work = [_ratio(total_cost(other, c), total_cost(base, c)) for c in ("forward_passes", "tokens_computed")]
        fitting = plan_fit(base, other) if fit else None
        if timed_arms is not None:
            keys = ((subject, base_recipe), (subject, recipe))
            base, other = on_shared_samples(*(timed_arms.get(key, []) for key in keys))
        seconds = total_seconds(other)
        if seconds and (untimed := sum(record.share_of_time is None for record in (*base, *other))):
            notes.append(f"{subject}, {name}: {untimed} records have no seconds, because they were not measured.")
        rows.append([
            subject,
            name,
            str(len(arm)),
            f"{sum(record.horizon for record in arm) / len(arm):.0f}",
            f"{sum(scores) / len(scores):.3f} ± {standard_error(scores):.3f}",
            difference,
            f"{sum(record.finish != 'ended' for record in arm) / len(arm):.2f}",
            *work,
            _ratio(seconds, total_seconds(base)) if seconds else "",
            *((f"{fitting[0]:.1%}", f"{fitting[1]:.0f}") if fitting else ("", "") if fit else ()),
        ])  # fmt: skip
    return Table(title, (*COLUMNS, *(FIT_COLUMNS if fit else ())), rows, "\n\n".join(filter(None, notes)))


def plan_fit(base: Sequence[Answer], other: Sequence[Answer]) -> tuple[float, float] | None:
    """Return the share of `base`'s answers that fit the plans of `other`, and the mean number of spare slots.

    Return None if no length of `base`'s answers is known.
    """
    needed = finished_lengths(base)
    spare = [r.horizon - needed[key] for r in other if (key := sample_key(r)) in needed]
    if not spare:
        return None
    return sum(slots >= 0 for slots in spare) / len(spare), sum(max(s, 0) for s in spare) / len(spare)


def drift_table(records: Sequence[Drift]) -> Table:
    """Return a table of the change of the expected length since step 0, in slots, by model, task and step."""
    steps = sorted({step for record in records for step in record.steps} - {0})
    rows = []
    for subject, drifts in by_subject(records).items():
        for task in dict.fromkeys(record.task for record in drifts):
            lengths = [record.steps for record in drifts if record.task == task]
            changes = [[length[step] - length[0] for length in lengths if step in length] for step in steps]
            rows.append([subject, task, str(len(lengths)), *map(mean_and_spread, changes)])
    return Table(DRIFT_TITLE, ("model", "task", "n", *(f"step {step}" for step in steps)), rows)


def mean_and_spread(values: Sequence[float]) -> str:
    """Return text with the mean and the standard deviation, or empty text without values."""
    return f"{statistics.mean(values):+.1f} ± {statistics.pstdev(values):.1f}" if values else ""


def too_long_summary(records: Sequence[Answer]) -> str:
    """Return a sentence on the samples that exceeded the context length, or empty text if none did."""
    skipped = sum(record.finish == TOO_LONG for record in records)
    shortened = sum(record.shortened for record in records)
    summary = (
        f"Of {len(records)} records, {skipped} score 0 without decoding, because the prompt leaves fewer "
        f"than {MIN_SLOTS} slots, and {shortened} have a canvas that was shortened to the context length."
    )
    return summary if skipped or shortened else ""


def code_summary(records: Sequence[Record]) -> str:
    """Return a line per sandbox level: how many programs ran in it, and how many were not run."""
    levels: dict[tuple[object, object], list[Answer]] = {}
    for record in records:
        if isinstance(record, Answer) and record.sandbox is not None:
            level = record.sandbox.get("level"), record.sandbox.get("walls")
            levels.setdefault(level, []).append(record)
    return "\n".join(
        sandbox_summary(answers[0].sandbox or {}, len(answers), sum(record.refused for record in answers))
        for answers in levels.values()
    )


def describe_difference(base: Sequence[Answer], other: Sequence[Answer]) -> str:
    """Return text with the difference in mean score and its paired p-value, for records of the same samples."""
    if not base:
        return "no common samples"
    difference = sum(o.score - b.score for b, o in zip(base, other, strict=True)) / len(base)
    return f"{difference:+.3f}, p = {paired_p([r.correct for r in base], [r.correct for r in other]):.2g}"


def _by_subject_and_recipe(records: Sequence[Answer]) -> dict[tuple[str, Recipe], list[Answer]]:
    return {
        (subject, recipe): arm
        for subject, group in by_subject(latest(records)).items()
        for recipe, arm in by_recipe(group).items()
    }


def _ratio(own: int | float, base: int | float) -> str:
    """Return text with `own` divided by the baseline's cost, or empty text if one of them is unknown."""
    if not base or math.isnan(own / base):
        return ""
    return f"{own / base:.2f}" if own > 0.1 * base else f"{own / base:.3f}"
