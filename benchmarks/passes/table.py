"""Records as Markdown: the lines of a record, and comparisons of several."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.passes.record import PassLine, PassRecord
from lastword.bench import COLUMNS, Column, heading, markdown_table

PROBED = ", probe included"
WHOLE = ("answers", "mixed", "plain", "recipes")
PASS_COLUMNS: dict[str, Column] = {
    "ms a pass": ("ms", ",.2f"),
    "TFLOP/s": ("tflops", "#,.4g"),
    "of ceiling": ("compute_share", ".0%"),
    "GB/s": ("gbs", ",.0f"),
    "of ceiling ": ("memory_share", ".0%"),
    "launches": ("launches", ",.1f"),
    "kernels": ("kernels", ",.0f"),
    "GPU busy": ("busy", ".0%"),
    "peak, MB": ("peak_mb", ",.0f"),
    "of a bare pass": ("ratio", ".3f"),
}


def table(record: PassRecord) -> str:
    """Return a record as Markdown: a table of passes, a table of whole answers, and notes."""
    passes = [line for line in record.lines if line.line not in WHOLE]
    whole = [line for line in record.lines if line.line in WHOLE]
    head = heading(record)
    if record.ceilings is not None:
        best = record.ceilings
        head += (
            f" Ceilings in the same run: {best.tflops:#,.4g} TFLOP/s (a product of width {best.matrix}), "
            f"{best.gbs:,.0f} GB/s (a copy)."
        )
    parts = [head]
    if passes:
        parts.append(markdown_table(passes, PASS_COLUMNS))
    if whole:
        parts.append(markdown_table(whole, COLUMNS | _faster(whole)))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in record.notes)])


def _faster(whole: list[PassLine]) -> dict[str, Column]:
    """Return a column with the speed compared with the plain loop or the fixed canvas of the same run."""
    slow = {line.case.partition(", ")[0]: line for line in whole if line.case.endswith(", fixed")}
    plain = next((line for line in whole if line.line == "plain"), None)

    def times(line: PassLine) -> float | None:
        base = slow.get(line.case.partition(", ")[0]) if line.line == "recipes" else plain
        single = line.rows == 1 or line.line == "recipes"
        if base is None or not base.seconds or not line.seconds or not single:
            return None
        return base.seconds / line.seconds

    name = "times the plain loop" if plain else "times the fixed canvas"
    return {name: (times, ",.1f")}


def steps(records: Iterable[PassRecord]) -> str:
    """Return a table from the authors' loop to the fastest answer, of records of the same shape.

    Answers that were not decoded completely are extrapolated from their passes with one token per pass. If
    several records have a step, the last one counts.
    """
    seconds_of: dict[str, float] = {}
    for record in records:
        weights = "" if record.weights == "plain" else f", {record.weights} weights"
        made = _steps(record)
        seconds_of |= {f"{name}{weights}": seconds for name, seconds in made.items()}
    if not seconds_of:
        return ""
    ordered = sorted(seconds_of.items(), key=lambda step: -step[1])
    slowest = ordered[0][1]
    rows = ["| step | seconds | times faster |", "|---|---:|---:|"]
    rows += [f"| {name} | {seconds:,.3f} | {slowest / seconds:,.1f} |" for name, seconds in ordered]
    return "\n".join(rows)


def _steps(record: PassRecord) -> dict[str, float]:
    """Return the seconds of every step of a record."""
    timed = {(line.line, line.case): line for line in record.lines}
    canvas, horizon = record.settings.get("canvas"), record.settings.get("horizon")
    if not isinstance(canvas, list) or not isinstance(horizon, int):
        return {}
    full, steps = max(canvas), dict[str, float]()
    plain = timed.get(("plain", f"{full} slots, one token a pass"))
    ours = timed.get(("passes", f"in the loop, {full} slots"))
    short = timed.get(("passes", f"in the loop, {horizon} slots"))
    probe = timed.get(("probe", f"{full} slots"))
    if plain and plain.seconds:
        steps[f"the authors' loop, {full} slots, one token a pass"] = plain.seconds
    if ours and ours.ms:
        steps[f"our loop, {full} slots, one token a pass"] = ours.ms * full / 1000
    if short and short.ms and probe and probe.ms:
        seconds = (short.ms * horizon + probe.ms) / 1000
        steps[f"a predicted horizon of {horizon}, one token a pass"] = seconds
    for (kind, case), line in timed.items():
        if kind == "answers" and line.seconds and case.endswith(PROBED):
            cache, *more = case.removesuffix(PROBED).split(", ")
            named = ", ".join(["no cache" if cache == "none" else f"{cache} cache", *more])
            steps[f"{record.settings.get('pace')} tokens a pass, {named}"] = line.seconds
    return steps


def against(now: PassRecord, before: PassRecord) -> str:
    """Return a table of the recipes of a run, compared with the fixed canvas and with an earlier run."""
    before_lines, now_lines = ({line.case: line for line in run.lines} for run in (before, now))
    rows = [
        "| model | recipe | seconds | times fixed | seconds before | times fixed | times before |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for line in now.lines:
        model, _, arm = line.case.partition(", ")
        old = before_lines.get(line.case)
        cells = [
            f"{line.seconds:,.2f}" if line.seconds else "",
            _times(now_lines.get(f"{model}, fixed"), line),
            f"{old.seconds:,.2f}" if old and old.seconds else "",
            _times(before_lines.get(f"{model}, fixed"), old),
            _times(old, line),
        ]
        rows.append(f"| {model} | {arm} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _times(slow: PassLine | None, fast: PassLine | None) -> str:
    """Return the ratio of the seconds, or nothing if one of them was not timed."""
    if slow is None or fast is None or not slow.seconds or not fast.seconds:
        return ""
    return f"{slow.seconds / fast.seconds:,.1f}"
