"""Write the tables of README and docs from records: `python -m benchmarks.pages`; `--check` only compares.

A page contains `<!-- table: NAME -->` and `<!-- end -->`. The text between them is written from the kept records;
equal records give equal bytes. The pages show the rows and columns that matter for a decision; they name the
commands that print complete tables.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from benchmarks import (
    batch_memory,
    catalogue,
    coverage,
    cpu_batches,
    cpu_passes,
    fast,
    interpretations,
    partial_answers,
    pool_capacity,
    ray_data,
    ray_streams,
    scaling,
)
from benchmarks.arms import BASE, DEFAULT, GROUPS, MODELS, UNSEEN, recipe_of
from benchmarks.float8 import FLOAT8
from benchmarks.hostile import record as hostile
from benchmarks.kept import (
    BATCH_SPEED,
    FIXED,
    GPU_SPEED,
    PARTS,
    SPEED,
    accuracy,
    answers_of,
    compare_with_fixed,
    study,
    timed,
)
from benchmarks.paper.page import page_tables as paper_tables
from benchmarks.passes import table as pass_tables
from benchmarks.passes.record import PassLine, PassRecord, read as read_passes
from benchmarks.probe_cache import PROBE_CACHE
from benchmarks.scale import table as scale_tables
from benchmarks.serving import order
from benchmarks.serving.figures import (
    OTHER_TABLES,
    page_table as serving_table,
    page_tables as serving_tables,
    read as read_serving,
)
from benchmarks.study import RECORDS, fixed_at
from lastword.evaluate.records import Answer
from lastword.evaluate.tables import Cost, on_shared_samples, paired_p, recipe_table, total_cost, total_seconds
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

DOCS = Path(__file__).parent.parent / "docs"
HOSTILE = RECORDS.parent / "hostile.json"  # the record of `python -m benchmarks.hostile`
SERVING = RECORDS.parent / "serving"  # records of `python -m benchmarks.serving`
BENCH = RECORDS.parent / "bench"  # records of `benchmarks.passes` and `lastword bench`
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHAPES = ("llada-8b", "dream-7b")
EMBEDDED = "embedded"  # the record of `lastword bench` on the embedded models
COSTS: tuple[Cost, ...] = ("forward_passes", "tokens_computed")

# Titles of timed arms.
FAST = f"{DEFAULT} + threshold 0.97"
TITLES = {
    FIXED: "fixed canvas of 256 slots",
    "survival": "the paper's prediction",
    "DAEDAL": "DAEDAL, several tokens per pass",
    DEFAULT: "`careful` (default)",
    FAST: "`fast`",
    f"{DEFAULT} + threshold 0.9": "`careful` + threshold 0.9",
    f"{DEFAULT} + threshold 0.9 + dual cache": "`careful` + threshold 0.9 + dual cache",
}
FRONT = (FIXED, "survival", "DAEDAL", DEFAULT, FAST)
# Arms on the pages about accuracy. Variants that lead to the same decision are left out.
LENGTHS = (
    "survival", "fixed 128", "fixed 192", "stop at end", "DAEDAL", "rho-EOS", "DAEDAL, one token per pass",
    "rho-EOS, one token per pass", "auto", "auto, quantile 0.9", "auto, cheapest 1000", DEFAULT,
    "auto, reread, grow, stop", f"{DEFAULT} + threshold 0.9", f"{DEFAULT} + dual cache",
    f"{DEFAULT} + threshold 0.9 + dual cache", "stop at end + threshold 0.9",
)  # fmt: skip
CONFIRMED = (
    "survival", DEFAULT, f"{DEFAULT} + dual cache", f"{DEFAULT} + threshold 0.9", "DAEDAL",
    "DAEDAL, one token per pass", "rho-EOS", "rho-EOS, one token per pass",
)  # fmt: skip
OTHER_PARTS = (
    "rho-EOS, released signal", "coin flip", "entropy bound 0.1, by margin", "secant", "survival, grow when full",
    "survival + two tokens per pass", "survival + factor", "survival + SlowFast", "survival + Prophet",
    "survival + stable margin", "survival + threshold 0.9 + feature cache", "stop at end + threshold 0.9",
    "stop at end + threshold 0.9 + dual cache",
)  # fmt: skip


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a Markdown table; the first columns are aligned to the left."""
    alignment = "---|" * text_columns + "---:|" * (len(head) - text_columns)
    return "\n".join([f"| {' | '.join(head)} |", f"|{alignment}", *(f"| {' | '.join(row)} |" for row in rows)])


def front() -> str:
    """Return the table of README: accuracy, work and seconds of the main recipes."""
    rows = []
    for arm in FRONT:
        answers = _all_models(arm, BATCH_SPEED)
        means = [total_cost(answers, cost) / len(answers) for cost in COSTS]
        rows.append([
            TITLES[arm], f"{100 * sum(answer.correct for answer in answers) / len(answers):.1f}%",
            *(f"{mean:,.0f}" for mean in means), _seconds_per_answer(arm, SPEED, ".2f"),
            _seconds_per_answer(arm, BATCH_SPEED, ".4f"),
        ])  # fmt: skip
    cpu, gpu = _all_models(FIXED, SPEED), _all_models(FIXED, BATCH_SPEED)
    ((processor, batch_size),) = {
        (answer.hardware.replace("(R)", "").partition(" Processor")[0], answer.rows) for answer in cpu
    }
    ((card, dtype, gpu_batch_size),) = {(answer.hardware, answer.dtype, answer.rows) for answer in gpu}
    head = (
        "recipe", "accuracy", "forward passes", "tokens computed", f"seconds, CPU, batch of {batch_size}",
        f"seconds, {card.removeprefix('NVIDIA ')}, batch of {gpu_batch_size}",
    )  # fmt: skip
    return "\n".join([
        table_of(head, rows),
        "",
        f"Means per answer of four embedded models (5M parameters). GPU: {len(gpu) // len(MODELS):,} test prompts per "
        f"model, {dtype}, also for accuracy and counts. CPU: {len(cpu) // len(MODELS)} prompts per model, one "
        f"core of an {processor}, float32. All recipes of a column were timed in one run: "
        "[seconds](docs/measured/seconds.md).",
    ])  # fmt: skip


def _seconds_per_answer(arm: str, folder: Path, form: str) -> str:
    """Return the mean seconds per answer of an arm over all models, and the speed-up over the fixed canvas."""
    seconds, fixed = (
        total_seconds(answers) / len(answers) for answers in (_all_models(name, folder) for name in (arm, FIXED))
    )
    return f"{seconds:{form}} ({fixed / seconds:.1f}x)"


def _all_models(arm: str, folder: Path) -> list[Answer]:
    """Return the answers of an arm by all models."""
    return [answer for model in MODELS for answer in answers_of(model, recipe_of(arm), folder=folder)]


def families() -> str:
    """Return the accuracy on the fixed canvas by family."""
    rows = []
    for model in MODELS:
        shares = accuracy(model)
        cells = [*shares.values(), sum(shares.values()) / len(shares)]
        rows.append([model, *(f"{cell:.3f}" for cell in cells)])
    return table_of(["model", *BENCHMARKS, "mean"], rows)


def canvas() -> str:
    """Return the comparison of the fixed canvas, the prediction, and a fixed canvas of the mean prediction."""
    records, titles = list[Answer](), dict[Recipe, str]()
    for model in MODELS:
        mean = fixed_at(answers_of(model, recipe_of("survival")))
        arms = {FIXED: recipe_of(FIXED), "survival": recipe_of("survival"), "fixed at the mean prediction": mean}
        for title, recipe in arms.items():
            titles[recipe] = title
            records += answers_of(model, recipe)
    table = recipe_table(records, titles=titles)
    names = ("model", "recipe", "mean slots", "accuracy", "difference", "truncated", "tokens computed")
    columns = [list(table.columns).index(name) for name in names]
    return table_of(names, ([row[at] for at in columns] for row in table.rows), text_columns=2)


def parts() -> str:
    """Return the decoding parts on both base models together, each from one run per model."""
    rows = []
    for arm in GROUPS["parts"].arms:
        if arm in OTHER_PARTS:
            continue
        base, other = list[Answer](), list[Answer]()
        for model in BASE:
            answers = [answers_of(model, recipe_of(name), folder=PARTS) for name in (FIXED, arm)]
            fixed_answers, arm_answers = on_shared_samples(*answers)
            base += fixed_answers
            other += arm_answers
        correct = [[answer.correct for answer in answers] for answers in (base, other)]
        difference = 100 * (sum(correct[1]) - sum(correct[0])) / len(other)
        compared = f"{difference:+.1f}, p {paired_p(*correct):.1g}" if arm != FIXED else ""
        work = [total_cost(other, cost) / total_cost(base, cost) for cost in COSTS]
        rows.append([
            arm, f"{100 * sum(correct[1]) / len(other):.1f}", compared, f"{work[0]:.2f}", f"{work[1]:.3f}",
            f"{total_seconds(other) / total_seconds(base):.2f}",
        ])  # fmt: skip
    return table_of(("recipe", "accuracy", "difference", "forward passes", "tokens computed", "seconds"), rows)


def chosen() -> str:
    """Return every candidate for the default on validation prompts, with the result of the rule."""
    rows = []
    for arm in GROUPS["choose"].arms:
        compared = {model: compare_with_fixed(model, arm, "validation") for model in MODELS}
        known = {model: result for model, result in compared.items() if result is not None}
        worst = min(known, key=lambda model: known[model].points)
        tokens = sum(result.tokens for result in known.values()) / len(known)
        verdict = "allowed" if known[worst].points >= 0 else "not allowed"
        verdict = {DEFAULT: "**default**", FIXED: ""}.get(arm, verdict)
        worst_cells = [f"{known[worst].points:+.1f}", worst] if arm != FIXED else ["", ""]
        rows.append((tokens, [arm, *worst_cells, f"{tokens:.3f}", verdict]))
    head = ("recipe", "lowest difference", "model", "tokens computed", "rule")
    return table_of(head, (row for _, row in sorted(rows, key=lambda item: item[0])))


def lengths() -> str:
    """Return the length policies on test prompts: difference in accuracy and tokens computed by model."""
    return _by_model("test", LENGTHS)


def confirmed() -> str:
    """Return the default, the paper and its peers on prompts that were decoded after all choices were final."""
    return _by_model(UNSEEN, CONFIRMED)


def _by_model(split: str, arms: Sequence[str]) -> str:
    """Return a row per recipe and a column per model: difference, p, and share of the tokens of the fixed canvas."""
    rows = []
    for arm in arms:
        results = [compare_with_fixed(model, arm, split) for model in MODELS]
        cells = [f"{r.points:+.1f}, p {r.p:.1g}, {r.tokens:.3f}" if r else "" for r in results]
        if any(cells):
            rows.append([arm, *cells])
    return table_of(["recipe", *MODELS], rows)


def paper() -> str:
    """Return the paper's tables; seconds are of one prompt at a time on a GPU, as in the paper."""
    return "\n\n".join(table.markdown() for table in paper_tables(study(), timed(GPU_SPEED)))


def speed(folder: Path) -> str:
    """Return the seconds per answer of the timed arms by model, with the speed-up over the fixed canvas."""
    all_fixed = _all_models(FIXED, folder)
    rows = []
    for arm in GROUPS["speed"].arms:
        cells = []
        for model in MODELS:
            fixed, answers = (answers_of(model, recipe_of(name), folder=folder) for name in (FIXED, arm))
            base, other = on_shared_samples(fixed, answers)
            if other and len(other) == len(fixed):
                seconds = [total_seconds(records) / len(records) for records in (base, other)]
                cells.append(f"{seconds[1]:.3g} ({seconds[0] / seconds[1]:.1f}x)")
        if len(cells) == len(MODELS):
            answers = _all_models(arm, folder)
            work = [total_cost(answers, cost) / total_cost(all_fixed, cost) for cost in COSTS]
            rows.append([TITLES[arm], *cells, f"{work[0]:.2f}", f"{work[1]:.3f}"])
    return table_of(["recipe", *MODELS, "forward passes", "tokens computed"], rows)


@lru_cache(maxsize=1)
def _interpretations() -> dict[str, str]:
    return interpretations.tables()


def _interpretation_table(name: str) -> str:
    """Return a table of the interpretations of one probe."""
    return _interpretations()[name]


def benched() -> dict[str, PassRecord]:
    """Return the kept runs of `benchmarks.passes` and `lastword bench` by file name."""
    return {path.stem: read_passes(path) for path in sorted(BENCH.glob("*.json"))}


def _by_shape() -> dict[str, list[PassRecord]]:
    """Return the runs of each real shape; runs with stored weights come first."""
    runs = sorted(benched().values(), key=lambda run: run.weights != "plain")
    return {shape: of_shape for shape in SHAPES if (of_shape := [run for run in runs if run.shape == shape])}


def bench() -> str:
    """Return the forward passes of every real shape."""
    sections = [f"**{shape}**\n\n{pass_tables.shape_table(runs)}" for shape, runs in _by_shape().items()]
    if any(map(widths_of, benched().values())):
        sections.append("![Time and memory of a full forward pass by its width](../figures/widths.png)")
    return "\n\n".join(sections)


def widths_of(run: PassRecord) -> list[PassLine]:
    """Return the full forward passes of one run by width."""
    return [line for line in run.lines if line.line == "widths"]


def bench_steps() -> str:
    """Return the seconds per answer from the authors' loop to the fastest recipe, with a column per shape."""
    return pass_tables.steps_table(_by_shape()) or "No run of whole answers is kept yet."


def bench_recipes() -> str:
    """Return the seconds of whole batches by recipe on the embedded models."""
    run = benched().get(EMBEDDED)
    return pass_tables.recipes_table(run) if run else "No run of recipes is kept yet."


def serving_record(name: str) -> str:
    """Return the results of one record of the server."""
    return serving_table(name, read_serving(SERVING / f"{name}.json"))


TABLES: dict[str, Callable[[], str]] = {
    "front": front,
    "families": families,
    "canvas": canvas,
    "parts": parts,
    "chosen": chosen,
    "lengths": lengths,
    "confirmed": confirmed,
    "fast": fast.page_candidates,
    "fast-confirmed": fast.page_confirmation,
    "partial-answers": lambda: partial_answers.table(partial_answers.read()),
    "float8": FLOAT8.table,
    "probe-cache": PROBE_CACHE.table,
    "paper": paper,
    "speed": partial(speed, SPEED),
    "gpu-speed": partial(speed, GPU_SPEED),
    "batch-speed": partial(speed, BATCH_SPEED),
    "bench": bench,
    "bench-steps": bench_steps,
    "bench-recipes": bench_recipes,
    "cpu-passes": cpu_passes.table,
    "coverage": coverage.page_table,
    "scale": scale_tables.page_table,
    "scale-limits": scale_tables.page_limits,
    "scaling": scaling.kept,
    "pool-capacity": pool_capacity.kept,
    "batch-memory": batch_memory.table,
    "cpu-batches": cpu_batches.table,
    "ray-data": ray_data.table,
    "ray-streams": ray_streams.table,
    "serving-order": partial(order.table, order.PAGE_OVERTAKING),
    "serving-deadlines-simulated": order.deadline_table,
    **{f"serving-{name}": partial(serving_record, name) for name in OTHER_TABLES},
    "serving": lambda: serving_tables(SERVING),
    "hostile": lambda: hostile.table(hostile.read(HOSTILE)),
    "records": catalogue.records,
    "models": catalogue.models,
    "training-runs": catalogue.training_runs,
    **{name: partial(_interpretation_table, name) for name in interpretations.TABLES},
}


def written(page: str) -> str:
    """Return a page with its tables written from the records."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n\n{place[3]}", page)


# Every page that may contain a table.
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def main() -> None:
    """Write every page, or report the pages whose tables differ from the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="do not write; exit status 1 if a page differs")
    check = parser.parse_args().check
    stale = [path for path in PAGES if written(path.read_text()) != path.read_text()]
    for path in stale:
        if not check:
            path.write_text(written(path.read_text()))
        print(path.relative_to(DOCS.parent))
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
