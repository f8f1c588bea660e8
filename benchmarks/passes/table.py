"""Records as Markdown: all lines of a record, and the tables of docs/measured/passes.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.passes.record import PassLine, PassRecord
from lastword.bench import Column, heading, markdown_table

PROBED = ", probe included"
WHOLE = ("answers", "mixed", "plain", "recipes")
PASS_COLUMNS: dict[str, Column] = {
    "ms per forward pass": ("ms", ",.2f"),
    "TFLOP/s": ("tflops", "#,.4g"),
    "of peak compute": ("compute_share", ".0%"),
    "GB/s": ("gbs", ",.0f"),
    "of peak bandwidth": ("memory_share", ".0%"),
    "kernel launches": ("launches", ",.1f"),
    "kernels": ("kernels", ",.0f"),
    "GPU busy": ("busy", ".0%"),
    "peak memory, MB": ("peak_mb", ",.0f"),
    "relative to the bare model": ("ratio", ".3f"),
}
WHOLE_COLUMNS: dict[str, Column] = {
    "prompts": ("rows", ",d"),
    "seconds": ("seconds", ",.3f"),
    "first run, seconds": ("first_seconds", ",.3f"),
    "forward passes": ("forward_passes", ",d"),
    "ms per forward pass": ("ms", ",.2f"),
    "tokens/s": ("tokens_per_second", ",.0f"),
    "tokens per forward pass": ("tokens_per_forward", ".2f"),
    "tokens computed": ("tokens_computed", ",.0f"),
    "of them useful": ("useful_share", ".1%"),
    "batch in use": ("occupancy", ".1%"),
    "decoded alone": ("solo", ",d"),
    "with an equal answer": ("solo_equal", ",d"),
    "peak memory, MB": ("peak_mb", ",.0f"),
}


def table(record: PassRecord) -> str:
    """Return a record as Markdown: a table of forward passes, a table of whole answers, and notes."""
    passes = [line for line in record.lines if line.line not in WHOLE]
    whole = [line for line in record.lines if line.line in WHOLE]
    head = heading(record)
    if record.ceilings is not None:
        peak = record.ceilings
        head += (
            f" Peak rates measured in the same run: {peak.tflops:#,.4g} TFLOP/s (a matrix product of width "
            f"{peak.matrix}), {peak.gbs:,.0f} GB/s (a copy)."
        )
    parts = [head]
    if passes:
        parts.append(markdown_table(passes, PASS_COLUMNS))
    if whole:
        parts.append(markdown_table(whole, WHOLE_COLUMNS | _speedup(whole)))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in record.notes)])


def _speedup(whole: list[PassLine]) -> dict[str, Column]:
    """Return a column with the speedup over the plain loop or the fixed canvas of the same run."""
    fixed = {line.case.partition(", ")[0]: line for line in whole if line.case.endswith(", fixed")}
    plain = next((line for line in whole if line.line == "plain"), None)

    def speedup(line: PassLine) -> float | None:
        base = fixed.get(line.case.partition(", ")[0]) if line.line == "recipes" else plain
        comparable = line.rows == 1 or line.line == "recipes"
        if base is None or not base.seconds or not line.seconds or not comparable:
            return None
        return base.seconds / line.seconds

    return {"speedup over the plain loop" if plain else "speedup over the fixed canvas": (speedup, ",.1f")}


def steps_table(shapes: Mapping[str, Sequence[PassRecord]]) -> str:
    """Return a table with the seconds per answer of every step, from the authors' loop on, and a column per shape.

    Answers that were not decoded completely are extrapolated from forward passes that unmask one token. If several
    records of a shape contain a step, the last one counts.
    """
    seconds = {shape: _steps_of(records) for shape, records in shapes.items()}
    seconds = {shape: steps for shape, steps in seconds.items() if steps}
    if not seconds:
        return ""
    names = dict.fromkeys(name for steps in seconds.values() for name in steps)
    first = next(iter(seconds.values()))
    ordered = sorted(names, key=lambda name: -first.get(name, _seconds_of_any(seconds, name)))
    rows = [f"| decoding | {' | '.join(f'{shape}, seconds' for shape in seconds)} |", "|---|" + "---:|" * len(seconds)]
    for name in ordered:
        cells = [
            f"{steps[name]:,.3f} ({max(steps.values()) / steps[name]:,.1f}x)" if name in steps else ""
            for steps in seconds.values()
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _seconds_of_any(seconds: Mapping[str, Mapping[str, float]], name: str) -> float:
    """Return the seconds of a step in the first shape that has it."""
    return next(steps[name] for steps in seconds.values() if name in steps)


def _steps_of(records: Iterable[PassRecord]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for record in records:
        weights = "" if record.weights == "plain" else f", {record.weights} weights"
        seconds |= {f"{name}{weights}": value for name, value in _steps(record).items()}
    return seconds


def _steps(record: PassRecord) -> dict[str, float]:
    """Return the seconds of every step of a record."""
    timed = {(line.line, line.case): line for line in record.lines}
    canvas, horizon = _canvas(record.settings), _horizon(record.settings)
    if not canvas or horizon is None:
        return {}
    full, steps = max(canvas), dict[str, float]()
    plain = timed.get(("plain", f"{full} slots, one token per forward pass"))
    ours = timed.get(("passes", f"decoding loop, {full} slots"))
    short = timed.get(("passes", f"decoding loop, {horizon} slots"))
    probe = timed.get(("probe", f"{full} slots"))
    if plain and plain.seconds:
        steps[f"authors' loop, {full} slots"] = plain.seconds
    if ours and ours.ms:
        steps[f"our loop, {full} slots"] = ours.ms * full / 1000
    if short and short.ms and probe and probe.ms:
        steps[f"predicted canvas of {horizon} slots"] = (short.ms * horizon + probe.ms) / 1000
    per_pass = record.settings.get("tokens_per_pass", record.settings.get("pace"))  # older records have `pace`
    for (kind, case), line in timed.items():
        if kind == "answers" and line.seconds and case.endswith(PROBED):
            cache, *more = case.removesuffix(PROBED).split(", ")
            title = ", ".join(["no cache" if cache == "none" else f"{cache} cache", *more])
            steps[f"{per_pass} tokens per forward pass, {title}"] = line.seconds
    return steps


def _canvas(settings: Mapping[str, object]) -> list[int]:
    canvas = settings.get("canvas")
    return canvas if isinstance(canvas, list) else []


def _horizon(settings: Mapping[str, object]) -> int | None:
    horizon = settings.get("horizon")
    return horizon if isinstance(horizon, int) else None


def shape_table(records: Sequence[PassRecord]) -> str:
    """Return a table of the forward passes and mixed batches of one shape, in every weight format."""
    rows = ["| forward pass | ms | of peak compute | of peak bandwidth | tokens/s |", "|---|---:|---:|---:|---:|"]
    for record in records:
        weights = "" if record.weights == "plain" else f", {record.weights} weights"
        for line in record.lines:
            if (title := _title(line, record.settings)) is not None and line.ms:
                rate = f"{line.tokens_per_second:,.0f}" if line.line == "mixed" and line.tokens_per_second else ""
                shares = [f"{share:.0%}" if share else "" for share in (line.compute_share, line.memory_share)]
                rows.append(f"| {title}{weights} | {line.ms:,.2f} | {' | '.join(shares)} | {rate} |")
    return "\n".join(rows)


def _title(line: PassLine, settings: Mapping[str, object]) -> str | None:
    """Return the title of a line, or None if the page does not show the line."""
    if line.line == "probe":
        return f"probe, {line.case}"
    if line.line == "passes":
        slots = (max(_canvas(settings), default=None), _horizon(settings))
        on_page = line.case in [f"decoding loop, {count} slots" for count in slots]
        return line.case.replace("decoding loop", "full pass") if on_page else None
    cache, _, details = line.case.partition(", ")
    title = "no cache" if cache == "none" else f"{cache} cache"
    computed_once = ", prompt computed once" if details.startswith("prompt computed once") else ""
    if line.line == "blocks":
        return f"block, {title}{computed_once}"
    if line.line == "mixed":
        queue = details.removeprefix("prompt computed once").removeprefix(", ")
        return f"{queue or f'{line.rows} prompts at the same time'}, {title}{computed_once}"
    return None


def recipes_table(record: PassRecord) -> str:
    """Return the seconds of each recipe by model, with the speedup over the fixed canvas of the same model.

    A cell is empty if the model was not measured with the recipe; there is no speedup without a fixed canvas.
    """
    seconds = {tuple(line.case.split(", ")): line.seconds for line in record.lines if line.seconds}
    models = list(dict.fromkeys(model for model, _ in seconds))
    rows = [f"| recipe | {' | '.join(models)} |", "|---|" + "---:|" * len(models)]
    for recipe in dict.fromkeys(recipe for _, recipe in seconds):
        cells = []
        for model in models:
            value, fixed = seconds.get((model, recipe)), seconds.get((model, "fixed"))
            speedup = f" ({fixed / value:.1f}x)" if value and fixed else ""
            cells.append(f"{value:.2f}{speedup}" if value else "")
        rows.append(f"| {recipe} | {' | '.join(cells)} |")
    return "\n".join(rows)
