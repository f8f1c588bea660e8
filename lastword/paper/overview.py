"""Records to tables: accuracy with its error, the paired difference to a baseline, and the work."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from lastword.errors import LastwordError
from lastword.eval.ask import TOO_LONG
from lastword.eval.journal import Record
from lastword.eval.room import LEAST
from lastword.paper.compare import paired_p, standard_error
from lastword.paper.pairing import by_recipe, by_subject, latest, on_shared
from lastword.recipe.recipe import Recipe

HEAD = (
    "| model | recipe | n | mean slots | accuracy | against the first | cut | passes | columns | seconds |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def tables(records: Sequence[Record]) -> str:
    """A table per benchmark, by name, and what did not fit the model.

    The same benchmark asked or scored in another way has a table of its own.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        said = (record.get(name) or "" for name in ("group", "task_version", "layout"))
        groups.setdefault(tuple(said), []).append(record)
    parts = []
    for (group, version, layout), mine in sorted(groups.items()):
        names = len({record["task"] for record in mine})
        count = f"{names} tasks" if names > 1 else ""
        about = "; ".join(filter(None, (count, version, layout)))
        parts.append(f"{group or 'records'} ({about})\n\n{table(mine)}")
        parts += [line] if (line := unfit(mine)) else []
    return "\n\n".join(parts)


def unfit(records: Sequence[Record]) -> str:
    """How many samples met the end of the model's positions, by the rule of `room`; else nothing."""
    unasked = sum(record["finish"] == TOO_LONG for record in records)
    shortened = sum(record.get("shortened", False) for record in records)
    if not unasked and not shortened:
        return ""
    return (
        f"Of {len(records)} records, {unasked} score 0 unasked because the prompt leaves fewer than "
        f"{LEAST} positions, and {shortened} were asked on a canvas shortened to what is left."
    )


def spent(records: Sequence[Record], what: str) -> int:
    """Passes, columns or squares in all, the probe included."""
    return sum(record["cost"][what] + record["probe_cost"][what] for record in records)


def seconds(records: Sequence[Record]) -> float:
    """Wall time of the batches the records came from, shared among their rows; 0 if it was not kept."""
    return math.fsum((r["batch_seconds"] or 0.0) / r["rows"] for r in records)


def table(
    records: Sequence[Record],
    titles: Mapping[str, str] | None = None,
    timed: Sequence[Record] | None = None,
) -> str:
    """Markdown, a line per model and recipe; difference and work against the model's first recipe.

    Both are of the samples the two answered; seconds are of `timed`, if those are others. `titles` names
    recipes by their JSON. "cut" is the share of answers that met no end token.
    """
    lines, first = list(HEAD), dict[str, list[Record]]()
    clocked = None if timed is None else _by_arm(timed)
    start: dict[str, str] = {}
    for (subject, recipe), mine in _by_arm(records).items():
        base, own = on_shared(first.setdefault(subject, mine), mine)
        start.setdefault(subject, recipe)
        scores = [record["score"] for record in mine]
        accuracy = f"{sum(scores) / len(scores):.3f} ± {standard_error(scores):.3f}"
        compared = "" if mine is first[subject] else against(base, own)
        work = [_ratio(own, base, what) for what in ("passes", "columns")]
        if clocked is not None:
            arms = ((subject, start[subject]), (subject, recipe))
            base, own = on_shared(*(clocked.get(arm, []) for arm in arms))
        work.append(_ratio(own, base, "seconds"))
        lines.append(
            f"| {subject} | {(titles or {}).get(recipe) or label(recipe)} | {len(mine)} "
            f"| {sum(r['horizon'] for r in mine) / len(mine):.0f} | {accuracy} | {compared} "
            f"| {sum(r['finish'] != 'ended' for r in mine) / len(mine):.2f} | {' | '.join(work)} |"
        )
    return "\n".join(lines)


def _by_arm(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by who answered and by which recipe."""
    return {
        (subject, recipe): mine
        for subject, own in by_subject(latest(records)).items()
        for recipe, mine in by_recipe(own).items()
    }


def against(base: Sequence[Record], other: Sequence[Record]) -> str:
    """Difference in mean score and its paired p; records of the same samples in the same order."""
    if not base:
        return "no common samples"
    moved = sum(o["score"] - b["score"] for b, o in zip(base, other, strict=True)) / len(base)
    p = paired_p([r["score"] > 0.5 for r in base], [r["score"] > 0.5 for r in other])
    return f"{moved:+.3f}, p = {p:.2g}"


def _ratio(own: Sequence[Record], base: Sequence[Record], what: str) -> str:
    """Work as a share of the baseline's; nothing where that is not known."""
    total = seconds if what == "seconds" else lambda records: spent(records, what)
    mine, theirs = total(own), total(base)
    if not theirs or (what == "seconds" and not mine):
        return ""
    return f"{mine / theirs:.2f}" if mine > 0.1 * theirs else f"{mine / theirs:.3f}"


def label(recipe: str) -> str:
    """A recipe in a line; one with parts of a user's own, which only its JSON names, by their names."""
    try:
        return Recipe.from_json(recipe).label()
    except LastwordError:
        data = json.loads(recipe)
        return ", ".join(str(part["name"]) for part in data.values() if isinstance(part, dict))
