"""Records as Markdown: the lines of one, and the way down from the authors' loop over several."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.passes.record import PassLine, PassRecord
from lastword.bench import COLUMNS, heading, markdown_table

Cell = Callable[[PassLine], float | None]
PROBED = ", probe included"
WHOLE = ("answers", "mixed", "plain", "recipes")
PASS_COLUMNS: dict[str, tuple[Cell, str]] = {
    "ms a pass": (lambda line: line.ms, ",.2f"),
    "TFLOP/s": (lambda line: line.tflops, "#,.4g"),
    "of ceiling": (lambda line: line.compute_share, ".0%"),
    "GB/s": (lambda line: line.gbs, ",.0f"),
    "of ceiling ": (lambda line: line.memory_share, ".0%"),
    "launches": (lambda line: line.launches, ",.1f"),
    "kernels": (lambda line: line.kernels, ",.0f"),
    "GPU busy": (lambda line: line.busy, ".0%"),
    "peak, MB": (lambda line: line.peak_mb, ",.0f"),
    "of a bare pass": (lambda line: line.ratio, ".3f"),
}


def table(record: PassRecord) -> str:
    """What was measured: a table of passes, a table of whole answers, and how to read them."""
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
        columns: dict[str, tuple[Cell, str]] = {**COLUMNS, **_faster(whole)}
        parts.append(markdown_table(whole, columns))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in record.notes)])


def _faster(whole: list[PassLine]) -> dict[str, tuple[Cell, str]]:
    """Against the plain loop, or a model's fixed canvas, if it was measured in the same run."""
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
    """From the authors' loop to the fastest answer: a step a row, of records of one shape.

    Answers that were not decoded whole are extrapolated from their passes, one token each. Of a step that
    several records hold the last is shown.
    """
    found: dict[str, float] = {}
    for record in records:
        weights = "" if record.weights == "plain" else f", {record.weights} weights"
        made = _steps(record)
        found |= {f"{name}{weights}": seconds for name, seconds in made.items()}
    if not found:
        return ""
    ordered = sorted(found.items(), key=lambda step: -step[1])
    slowest = ordered[0][1]
    rows = ["| step | seconds | times faster |", "|---|---:|---:|"]
    rows += [f"| {name} | {seconds:,.3f} | {slowest / seconds:,.1f} |" for name, seconds in ordered]
    return "\n".join(rows)


def _steps(record: PassRecord) -> dict[str, float]:
    """The seconds of every step that a record holds."""
    timed = {(line.line, line.case): line for line in record.lines}
    canvas, horizon = record.settings.get("canvas"), record.settings.get("horizon")
    if not isinstance(canvas, list) or not isinstance(horizon, int):
        return {}
    full, found = max(canvas), dict[str, float]()
    plain = timed.get(("plain", f"{full} slots, one token a pass"))
    ours = timed.get(("passes", f"in the loop, {full} slots"))
    short = timed.get(("passes", f"in the loop, {horizon} slots"))
    probe = timed.get(("probe", f"{full} slots"))
    if plain and plain.seconds:
        found[f"the authors' loop, {full} slots, one token a pass"] = plain.seconds
    if ours and ours.ms:
        found[f"our loop, {full} slots, one token a pass"] = ours.ms * full / 1000
    if short and short.ms and probe and probe.ms:
        seconds = (short.ms * horizon + probe.ms) / 1000
        found[f"a predicted horizon of {horizon}, one token a pass"] = seconds
    for (kind, case), line in timed.items():
        if kind == "answers" and line.seconds and case.endswith(PROBED):
            cache, *more = case.removesuffix(PROBED).split(", ")
            named = ", ".join(["no cache" if cache == "none" else f"{cache} cache", *more])
            found[f"{record.settings.get('pace')} tokens a pass, {named}"] = line.seconds
    return found


def against(now: PassRecord, before: PassRecord) -> str:
    """Recipes of one run, against the fixed canvas and against an earlier run."""
    then, own = ({line.case: line for line in run.lines} for run in (before, now))
    rows = [
        "| model | recipe | seconds | times fixed | seconds before | times fixed | times before |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for line in now.lines:
        model, _, arm = line.case.partition(", ")
        old = then.get(line.case)
        cells = [
            f"{line.seconds:,.2f}" if line.seconds else "",
            _times(own.get(f"{model}, fixed"), line),
            f"{old.seconds:,.2f}" if old and old.seconds else "",
            _times(then.get(f"{model}, fixed"), old),
            _times(old, line),
        ]
        rows.append(f"| {model} | {arm} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _times(slow: PassLine | None, fast: PassLine | None) -> str:
    """How many times faster, if both were timed."""
    if slow is None or fast is None or not slow.seconds or not fast.seconds:
        return ""
    return f"{slow.seconds / fast.seconds:,.1f}"
