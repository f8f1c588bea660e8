"""Write the tables of docs from records: `python -m benchmarks.pages`; `--check` only compares.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written from records, the same
bytes every time. A test says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from benchmarks import begun, catalogue, coverage, fast, readings, scaling
from benchmarks.arms import ARMS, BASE, DEFAULT, GROUPS, MODELS, UNSEEN, recipe_of
from benchmarks.float8 import FLOAT8
from benchmarks.kept import BATCH_SPEED, FIXED, PARTS, SPEED, accuracy, against_fixed, answers_of, asked, study, timed
from benchmarks.opening import OPENING
from benchmarks.paper.tables import paper_tables
from benchmarks.passes import table as pass_tables
from benchmarks.passes.record import PassLine, PassRecord, read as read_passes
from benchmarks.scale import table as scale_tables
from benchmarks.serving import order
from benchmarks.serving.figures import ROUTING, read as read_serving, routing_table, tables as serving_tables
from benchmarks.study import RECORDS, fixed_at
from lastword.evaluate.records import Answer
from lastword.evaluate.tables import Cost, on_shared_samples, recipe_table, total_cost, total_seconds
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

DOCS = Path(__file__).parent.parent / "docs"
SERVING = RECORDS.parent / "serving"  # what `python -m benchmarks.serving` measured, a file a run
BENCH = RECORDS.parent / "bench"  # what `benchmarks.passes` and `lastword bench` measured, a file per run
EMBEDDED_BEFORE = "embedded-before"  # the seconds of batches of 500 that were kept at ee959e8
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
LENGTHS = (
    "stop at end", "fixed 128", "fixed 192", "DAEDAL", "rho-EOS", "DAEDAL, one token a pass",
    "rho-EOS, one token a pass",
)  # fmt: skip

COSTS: tuple[Cost, ...] = ("forward_passes", "tokens_computed")
FRONT = {
    FIXED: "fixed canvas of 256 slots",
    "survival": "the paper's prediction",
    "DAEDAL": "DAEDAL, several tokens a pass",
    DEFAULT: "our default, one token a pass",
}


def families() -> str:
    """Accuracy on the fixed canvas, family by family."""
    lines = [
        f"| model | prompts of each | {' | '.join(BENCHMARKS)} | mean |",
        "|---|---:|" + "---:|" * (len(BENCHMARKS) + 1),
    ]
    for model in MODELS:
        shares = accuracy(model)
        cells = [*shares.values(), sum(shares.values()) / len(shares)]
        lines.append(f"| {model} | {asked(model)} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return "\n".join(lines)


def canvas() -> str:
    """Fixed, predicted and fixed at the mean prediction."""
    records, titles = list[Answer](), dict[Recipe, str]()
    for model in MODELS:
        predictions = answers_of(model, recipe_of("survival"))
        mean = fixed_at(predictions)
        named = {FIXED: recipe_of(FIXED), "survival": recipe_of("survival"), "fixed at the mean prediction": mean}
        for title, recipe in named.items():
            titles[recipe] = title
            records += answers_of(model, recipe)
    return recipe_table(records, titles=titles).markdown()


def parts() -> str:
    """Every decoding part, alone and together, on the base pair: all of one run a model."""
    titles = {recipe_of(arm): arm for arm in GROUPS["parts"].arms}
    records: list[Answer] = []
    for model in BASE:
        for recipe in titles:
            records += answers_of(model, recipe, folder=PARTS)
    return recipe_table(records, titles=titles).markdown()


def chosen() -> str:
    """Every candidate for the default, on validation prompts."""
    return _on_all_models("validation", GROUPS["choose"].arms)


def lengths() -> str:
    """Every way to choose a length, by what it gains or loses and what it costs, on test prompts."""
    return _on_all_models("test", [arm for arm in ARMS if arm in (*LENGTHS, *GROUPS["choose"].arms)])


def confirmed() -> str:
    """Return the default, the paper and its peers on prompts that were decoded after all choices were final."""
    return _on_all_models(UNSEEN, [*GROUPS["confirm"].arms, *GROUPS["peers"].arms])


def front() -> str:
    """The fixed canvas, the paper, its nearest peer and the default, over the four models together."""
    lines = ["| length | accuracy | passes | columns | seconds |", "|---|---:|---:|---:|---:|"]
    fixed, fixed_timed = (_together(FIXED, folder) for folder in (RECORDS, SPEED))
    for arm, title in FRONT.items():
        own, own_timed = (_together(arm, folder) for folder in (RECORDS, SPEED))
        shares = [total_cost(own, cost) / total_cost(fixed, cost) for cost in COSTS]
        time = ""
        if len(own_timed) == len(fixed_timed):
            mine, theirs = (total_seconds(found) / len(found) for found in (own_timed, fixed_timed))
            time = f"{mine:.1f}" if arm == FIXED else f"{mine:.1f} ({theirs / mine:.1f}x)"
        right = 100 * sum(answer.correct for answer in own) / len(own)
        lines.append(f"| {title} | {right:.1f}% | {shares[0]:.2f} | {shares[1]:.2f} | {time} |")
    (where,) = {f"{answer.hardware}, {answer.dtype}" for answer in fixed_timed}
    return "\n".join(
        [
            *lines,
            "",
            f"The four embedded models together. Passes and columns are shares of the fixed canvas's, probes "
            f"included; {len(fixed) // len(MODELS):,} test prompts a model: `benchmarks/records/study`. "
            f"Seconds a sample, one prompt at a time: {where}, {len(fixed_timed) // len(MODELS)} prompts a "
            f"model: `benchmarks/records/speed`.",
        ]
    )


def _together(arm: str, folder: Path) -> list[Answer]:
    """The answers of all models."""
    return [own for model in MODELS for own in answers_of(model, recipe_of(arm), folder=folder)]


def _on_all_models(split: str, arms: Sequence[str]) -> str:
    """A line per recipe, a column per model: points against the fixed canvas, p, and share of its columns."""
    lines = [f"| recipe | {' | '.join(MODELS)} |", f"|---|{'---:|' * len(MODELS)}"]
    for arm in arms:
        cells = [against_fixed(model, arm, split) for model in MODELS]
        if not any(cells):
            continue
        shown = [f"{c.points:+.1f}, p {c.p:.1g}, {c.columns:.3f}" if c else "" for c in cells]
        lines.append(f"| {arm} | {' | '.join(shown)} |")
    return "\n".join(lines)


def paper() -> str:
    """The paper's tables; seconds of batches, which were asked as many prompts as the rest."""
    return "\n\n".join(made.markdown() for made in paper_tables(study(), timed(BATCH_SPEED)))


@lru_cache(maxsize=1)
def _readings() -> dict[str, str]:
    return readings.tables()


def _read_as(name: str) -> str:
    """Return a table of the interpretations of one probe."""
    return _readings()[name]


@lru_cache(maxsize=1)
def _coverage() -> dict[str, str]:
    return coverage.tables()


def _covered(name: str) -> str:
    """Return a table of the coverage of calibrated bounds."""
    return _coverage()[name]


def _speed(folder: Path) -> str:
    """Seconds of the arms that were timed, alone on a machine and in one run, over all families."""
    lines = ["| model | recipe | n | seconds a sample | passes | columns |", "|---|---|---:|---:|---:|---:|"]
    for model in MODELS:
        fixed = answers_of(model, recipe_of(FIXED), folder=folder)
        for arm in GROUPS["speed"].arms:
            base, own = on_shared_samples(fixed, answers_of(model, recipe_of(arm), folder=folder))
            if own and len(own) == len(fixed):
                mine, theirs = (total_seconds(records) / len(own) for records in (own, base))
                work = [total_cost(own, cost) / total_cost(base, cost) for cost in COSTS]
                lines.append(
                    f"| {model} | {arm} | {len(own)} | {mine:.3g} ({theirs / mine:.1f}x) "
                    f"| {work[0]:.2f} | {work[1]:.2f} |"
                )
    return "\n".join(lines)


def benched() -> dict[str, PassRecord]:
    """Return the kept runs of `benchmarks.passes` and `lastword bench` by file name."""
    return {path.stem: read_passes(path) for path in sorted(BENCH.glob("*.json"))}


def bench() -> str:
    """Every line of every run."""
    shown = [f"**{name}.** {pass_tables.table(run)}" for name, run in benched().items()]
    if any(map(widths_of, benched().values())):
        shown.append("![A full pass as it widens, beside the arithmetic](../figures/widths.png)")
    return "\n\n".join(shown)


def widths_of(run: PassRecord) -> list[PassLine]:
    """Full passes of one run, by how wide they are."""
    return [line for line in run.lines if line.line == "widths"]


def bench_steps() -> str:
    """From the authors' loop to a fast answer, a table a shape; nothing where no answer was measured."""
    runs = benched()
    made = []
    for shape in dict.fromkeys(run.shape for run in runs.values()):
        told = pass_tables.steps([run for run in runs.values() if run.shape == shape])
        made += [f"**{shape}**, seconds of an answer.\n\n{told}"] if told else []
    return "\n\n".join(made) or "No run of whole answers is kept yet."


def bench_recipes() -> str:
    """Seconds of recipes on the embedded models, now and at an earlier commit, a table a run."""
    runs = {name: run for name, run in benched().items() if run.shape == "embedded"}
    before = runs.pop(EMBEDDED_BEFORE)
    told = [
        f"**{name}**: {run.hardware}, {run.dtype}, {run.settings['rows']} rows through "
        f"{run.settings['slots']} slots.\n\n{pass_tables.against(run, before)}"
        for name, run in runs.items()
        if any(line.case.endswith(", fixed") for line in run.lines)
    ]
    return "\n\n".join(told) or "No run of recipes is kept yet."


TABLES: dict[str, Callable[[], str]] = {
    "front": front,
    "families": families,
    "canvas": canvas,
    "parts": parts,
    "chosen": chosen,
    "lengths": lengths,
    "confirmed": confirmed,
    "fast": lambda: fast.candidates(fast.read("validation")),
    "fast-confirmed": fast.confirmation_kept,
    "begun": lambda: begun.table(begun.read()),
    "float8": FLOAT8.table,
    "opening": OPENING.table,
    "paper": paper,
    "speed": partial(_speed, SPEED),
    "batch-speed": partial(_speed, BATCH_SPEED),
    "bench": bench,
    "bench-steps": bench_steps,
    "bench-recipes": bench_recipes,
    "scale": scale_tables.kept,
    "scaling": scaling.kept,
    "scale-limits": scale_tables.kept_limits,
    "serving-order": order.table,
    "serving": lambda: serving_tables(SERVING),
    "routing": lambda: routing_table(read_serving(SERVING / f"{ROUTING}.json")),
    "records": catalogue.records,
    "models": catalogue.models,
    "training-runs": catalogue.training_runs,
    **{name: partial(_read_as, name) for name in readings.TABLES},
    **{name: partial(_covered, name) for name in ("covered-own", "covered-reference", "covered-chance")},
}


def written(page: str) -> str:
    """The page with its tables as the records have them."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


# Every page with a place for a table.
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def main() -> None:
    """Write every page, or say which do not show what the records say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    check = parser.parse_args().check
    stale = [path for path in PAGES if written(path.read_text()) != path.read_text()]
    for path in stale:
        if not check:
            path.write_text(written(path.read_text()))
        print(path.relative_to(DOCS.parent))
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
