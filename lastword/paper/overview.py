"""Records to tables: accuracy with its error, the paired difference to a baseline, and the work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from lastword.engines.base import TOO_LONG
from lastword.engines.local import MIN_SLOTS
from lastword.evaluate.records import Answer, Record
from lastword.paper.compare import paired_p, standard_error
from lastword.paper.pairing import by_recipe, by_subject, latest, on_shared
from lastword.recipe.recipe import Recipe
from lastword.sandbox.runner import sandbox_summary

HEAD = (
    "| model | recipe | n | mean slots | accuracy | against the first | cut | passes | columns | seconds |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def tables(records: Sequence[Record]) -> str:
    """A table per benchmark, by name, and what did not fit the model; answers only.

    The same benchmark asked or scored in another way has a table of its own.
    """
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for record in (record for record in records if isinstance(record, Answer)):
        said = (record.group, record.task_version, record.layout)
        groups.setdefault(said, []).append(record)
    parts = []
    for (group, version, layout), mine in sorted(groups.items()):
        names = len({record.task for record in mine})
        count = f"{names} tasks" if names > 1 else ""
        about = "; ".join(filter(None, (count, version, layout)))
        parts.append(f"{group} ({about})\n\n{table(mine)}")
        parts += [line] if (line := unfit(mine)) else []
    return "\n\n".join(parts)


def unfit(records: Sequence[Answer]) -> str:
    """How many samples met the end of the model's positions, by the rule of `room`; else nothing."""
    unasked = sum(record.finish == TOO_LONG for record in records)
    shortened = sum(record.shortened for record in records)
    if not unasked and not shortened:
        return ""
    return (
        f"Of {len(records)} records, {unasked} score 0 unasked because the prompt leaves fewer than "
        f"{MIN_SLOTS} positions, and {shortened} were asked on a canvas shortened to what is left."
    )


def code(records: Sequence[Record]) -> str:
    """How the code of these records was kept in and what of it was not run, a line for each way."""
    kept: dict[tuple[object, object], list[Answer]] = {}
    for record in records:
        if isinstance(record, Answer) and record.sandbox is not None:
            way = record.sandbox.get("level"), record.sandbox.get("walls")
            kept.setdefault(way, []).append(record)
    return "\n".join(
        sandbox_summary(mine[0].sandbox or {}, len(mine), sum(record.refused for record in mine))
        for mine in kept.values()
    )


def spent(records: Sequence[Answer], what: Literal["passes", "columns"]) -> int | float:
    """Passes or columns in all, the probe included; NaN where nobody counted those of a record."""
    if any(record.cost is None for record in records):
        return math.nan
    if what == "passes":
        return sum(record.forward_passes for record in records)
    return sum(record.tokens_computed for record in records)


def seconds(records: Sequence[Answer]) -> float:
    """Wall time of the batches the records came from, shared among their rows; 0 if it was not kept."""
    return math.fsum((r.batch_seconds or 0.0) / r.rows for r in records)


def table(
    records: Sequence[Answer],
    titles: Mapping[Recipe, str] | None = None,
    timed: Sequence[Answer] | None = None,
) -> str:
    """Markdown, a line per model and recipe; difference and work against the model's first recipe.

    Both are of the samples the two answered; seconds are of `timed`, if those are others. `titles` names
    recipes. "cut" is the share of answers that met no end token.
    """
    lines, first = list(HEAD), dict[str, list[Answer]]()
    clocked = None if timed is None else _by_arm(timed)
    start: dict[str, Recipe] = {}
    for (subject, recipe), mine in _by_arm(records).items():
        base, own = on_shared(first.setdefault(subject, mine), mine)
        start.setdefault(subject, recipe)
        scores = [record.score for record in mine]
        accuracy = f"{sum(scores) / len(scores):.3f} ± {standard_error(scores):.3f}"
        compared = "" if mine is first[subject] else against(base, own)
        work = [_ratio(own, base, "passes"), _ratio(own, base, "columns")]
        if clocked is not None:
            arms = ((subject, start[subject]), (subject, recipe))
            base, own = on_shared(*(clocked.get(arm, []) for arm in arms))
        work.append(_ratio(own, base, "seconds"))
        lines.append(
            f"| {cell(subject)} | {(titles or {}).get(recipe) or recipe.label()} | {len(mine)} "
            f"| {sum(r.horizon for r in mine) / len(mine):.0f} | {accuracy} | {compared} "
            f"| {sum(r.finish != 'ended' for r in mine) / len(mine):.2f} | {' | '.join(work)} |"
        )
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text inside a table: one line, no control characters, and no bar that would begin another cell.

    >>> cell("my|model\\n")
    'my\\\\|model '
    """
    return "".join(c if c.isprintable() else " " for c in text).replace("|", "\\|")


def _by_arm(records: Sequence[Answer]) -> dict[tuple[str, Recipe], list[Answer]]:
    """Records by who answered and by which recipe."""
    return {
        (subject, recipe): mine
        for subject, own in by_subject(latest(records)).items()
        for recipe, mine in by_recipe(own).items()
    }


def against(base: Sequence[Answer], other: Sequence[Answer]) -> str:
    """Difference in mean score and its paired p; records of the same samples in the same order."""
    if not base:
        return "no common samples"
    moved = sum(o.score - b.score for b, o in zip(base, other, strict=True)) / len(base)
    p = paired_p([r.right for r in base], [r.right for r in other])
    return f"{moved:+.3f}, p = {p:.2g}"


def _ratio(
    own: Sequence[Answer], base: Sequence[Answer], what: Literal["passes", "columns", "seconds"]
) -> str:
    """Spent as a share of the baseline's; nothing where that is not known."""
    mine, theirs = (
        seconds(records) if what == "seconds" else spent(records, what) for records in (own, base)
    )
    if not theirs or math.isnan(mine / theirs) or (what == "seconds" and not mine):
        return ""
    return f"{mine / theirs:.2f}" if mine > 0.1 * theirs else f"{mine / theirs:.3f}"
