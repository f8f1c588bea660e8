"""`lastword eval`, `drift`, `tables` and `bench`: measure recipes, and compare the records of measurements."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from lastword.cli import options
from lastword.cli.console import print_markdown, progress
from lastword.cli.errors import resumable
from lastword.cli.options import EngineOptions, ModelOptions, RecipeOptions, path_option
from lastword.errors import SettingError, TaskError
from lastword.io.files import check_folder, check_target, write

if TYPE_CHECKING:
    from lastword.evaluate.journal import Journal
    from lastword.evaluate.presets import Preset
    from lastword.evaluate.records import Record

TASKS = "Names separated by commas: tiny (five embedded tasks), algebra ..., gsm8k ... (lm-evaluation-harness)."


@dataclass(frozen=True)
class TaskOptions:
    """The options that select the samples and the folder for their records."""

    tasks: Annotated[str | None, Option(help=TASKS)] = None
    preset: Annotated[str | None, Option(help="Settings by name, such as paper/llada-base.")] = None
    limit: Annotated[int | None, Option(help="Samples per task. Default: all.")] = None
    rows: options.BatchSize = 8
    out: Annotated[Path, path_option("Folder of records. A stopped run is resumed.")] = Path("out/eval")

    def plan(self, model: str | None, **changes: Any) -> Preset:
        """Return --preset, reduced to --tasks if given, or a preset of --tasks; `changes` apply to all settings."""
        from lastword.evaluate import presets

        names = tuple(name.strip() for name in self.tasks.split(",")) if self.tasks is not None else ()
        if "" in names:
            raise TaskError(f"--tasks {self.tasks!r} contains an empty name; give names separated by commas")
        if self.preset is None:
            setting = presets.Setting(names or ("tiny",), options.read_recipe(None))
            plan = presets.Preset("Tasks of your choice.", options.DEFAULT_MODEL, (setting,))
        else:
            plan = presets.preset(self.preset)
            plan = plan.only(names) if names else plan
        settings = tuple(replace(setting, **changes) for setting in plan.settings)
        return replace(plan, settings=settings, model=model or plan.model)

    def journal(self, plan: Preset, kind: str, split: str = "test") -> Journal:
        """Check the tasks and the folder, and return the journal MODEL.KIND.jsonl in the folder."""
        from lastword.evaluate import Journal, presets

        presets.check_tasks([name for setting in plan.settings for name in setting.tasks], split)
        check_folder(self.out)
        return Journal(self.out / f"{Path(plan.model).name}.{kind}.jsonl")


def evaluate(
    model_options: ModelOptions,
    task_options: TaskOptions,
    recipe_options: RecipeOptions,
    engine_options: EngineOptions,
    show: Annotated[bool, Option("--show", help="Print the settings and measure nothing.")] = False,
    shots: Annotated[int | None, Option(help="Examples in a prompt. Default: the task's number.")] = None,
    chat: Annotated[bool | None, Option(help="Default: the preset's, or if the model has a template.")] = None,
    split: Annotated[str, Option(help="test, or validation to choose settings on.")] = "test",
    seed: options.Seed = 0,
    unsafe_code: Annotated[bool, Option("--unsafe-code", help="Run code without a sandbox if none works.")] = False,
    calibration: options.CalibrationFile = "auto",
) -> None:
    """Score a recipe on tasks and write one JSON record per sample.

    A run that was stopped or killed is resumed by the same command. The result shows all recipes whose records
    are in the same folder, each compared with the first.

    Examples:

        lastword eval --length fixed:256 --limit 4
        lastword eval --recipe fast --limit 4 --engine processes --workers 2
        lastword eval --model GSAI-ML/LLaDA-8B-Base --tasks gsm8k --length survival
        lastword eval --preset paper/llada-base --show
        lastword eval --preset paper/llada-base --tasks gsm8k --length fixed:1024
    """
    from lastword.evaluate import read_records, run, tables as evaluation
    from lastword.policies.length.fixed import Fixed
    from lastword.sandbox.runner import UNSAFE

    if unsafe_code:
        os.environ[UNSAFE] = "1"
    changes: dict[str, Any] = {} if shots is None else {"shots": shots}
    if recipe_options.recipe is not None:
        changes["recipe"] = options.read_recipe(recipe_options.recipe)
    plan = task_options.plan(model_options.model, **changes).with_choices(**recipe_options.parts)
    plan = replace(plan, chat=plan.chat if chat is None else chat)
    if show:
        typer.echo(plan.describe())
        return
    run.check_counts("eval", "rows", task_options.rows, task_options.limit)
    journal = task_options.journal(plan, split, split)
    source = replace(model_options, model=plan.model).source(calibration)
    with resumable(), closing(engine_options.open(source)) as engine:
        in_chat = run.PromptLayout.of(engine.model_info, chat=plan.chat).chat
        for setting in plan.settings:
            with progress(f"samples of {','.join(setting.tasks)}") as display:
                run.evaluate(
                    engine.model_info,
                    plan.model,
                    setting.load(split=split, chat=in_chat),
                    setting.recipe,
                    journal,
                    limit=task_options.limit,
                    max_batch_size=task_options.rows,
                    seed=seed,
                    chat=in_chat,
                    bos=plan.bos,
                    engine=display.count_replies(engine),
                    progress=display.update,
                )
    records = read_records(journal.path)
    parts = [*(table.markdown() for table in evaluation.tables(records)), evaluation.code_summary(records)]
    print_markdown("\n\n".join(filter(None, parts)))
    print_next_step(journal.path, len(records), compared=any(isinstance(r.recipe.length, Fixed) for r in records))


def print_next_step(path: Path, records: int, *, compared: bool = True) -> None:
    """Print the number of records and the next command; unless `compared`, a fixed canvas has to be measured first."""
    tables = f"lastword tables --records {shlex.quote(str(path.parent))}"
    advice = "compare them: " if compared else "to compare, the same command with --length fixed, then "
    typer.echo(f"lastword: {records} records in {path}; {advice}{tables}", err=True)


def drift(
    model_options: ModelOptions,
    task_options: TaskOptions,
    steps: Annotated[str, Option(help="Denoising steps, separated by commas.")] = "2,5,7,10",
    slots: Annotated[int | None, Option(help="Slots of the canvas. Default: the preset's or model's.")] = None,
) -> None:
    """Measure the expected length before denoising and after a few denoising steps: the paper's ablation.

    Decoding stops after the last of --steps. A sample that was measured at other steps is measured again, at the
    old and the new ones; a prompt that is too long for the model with all slots is skipped. A preset's blocks and
    caches are ignored. Records are written to the folder of `lastword eval`, and `lastword tables` shows them.

    Examples:

        lastword drift --limit 2 --tasks algebra --slots 128 --out out/eval-demo
        lastword drift --preset paper/llada-base --out out/paper-8b
    """
    from lastword.evaluate import drift as measure, presets
    from lastword.evaluate.run import PromptLayout
    from lastword.evaluate.tables import drift_table
    from lastword.policies.length.survival import Survival
    from lastword.validation import short_repr

    try:
        numbers = [int(step) for step in steps.split(",")]
    except ValueError as error:
        raise SettingError(f"--steps {short_repr(steps)} was given; give numbers such as 2,5,7,10") from error
    plan = task_options.plan(model_options.model)
    journal = task_options.journal(plan, "drift")
    model = replace(model_options, model=plan.model).source("auto").load()
    chat = PromptLayout.of(model, chat=plan.chat).chat
    if slots is None and task_options.preset:
        slots = presets.CANVAS
    records = []
    for setting in plan.settings:
        with progress(f"prompts of {','.join(setting.tasks)}") as display:
            records += measure(
                model,
                plan.model,
                setting.load(chat=chat),
                journal,
                length=Survival(slots),
                steps=numbers,
                limit=task_options.limit,
                max_batch_size=task_options.rows,
                chat=chat,
                bos=plan.bos,
                recipe=setting.recipe,
                progress=display.update,
            )
    print_markdown(drift_table(records).markdown())
    print_next_step(journal.path, len(records))


BENCH_RECIPES = "Names separated by commas; also default, and sampled (temperature 0.7)."
TABLES = "tables.md"
TABLES_START = b"<!-- lastword tables -->\n"


def tables(
    records: Annotated[list[Path], path_option("Files or folders of records; may be repeated.")],
    timed: Annotated[list[Path] | None, path_option("Other records for the seconds; may be repeated.")] = None,
    out: Annotated[Path | None, path_option("Folder for Markdown and CSV as well.")] = None,
    parquet: Annotated[Path | None, path_option("All records as one flat table, for DuckDB or pandas.")] = None,
) -> None:
    """Compare the recipes in records, with one table per benchmark.

    The baseline is the longest fixed canvas, or the first recipe if there is none. "covered" is the share of the
    baseline's answers that fit the canvas of a recipe, "waste" the mean number of unused slots on it. The same
    records always give the same files. For the survival paper's tables and figures, run python -m
    benchmarks.paper in the repository.

    Examples:

        lastword tables --records out/eval
        lastword tables --records out/eval --out out/tables --parquet all.parquet
    """
    from lastword.evaluate import tables as evaluation
    from lastword.evaluate.parquet import write_parquet

    if parquet is not None and parquet.exists() and any(map(parquet.samefile, [*records, *(timed or ())])):
        raise SettingError(f"{parquet} contains the records; export them to another file")
    answers = _read_records(records)
    timings = _read_records(timed) if timed else None
    if not answers:
        raise SettingError(f"{', '.join(map(str, records))}: no records; measure some with lastword eval")
    if out is not None:
        check_folder(out)
    if parquet is not None:
        check_folder(parquet.parent)
        check_target(parquet)
    with progress("making tables"):
        made = evaluation.tables(answers, timings, against_fixed=True)
    text = "\n\n".join(table.markdown() for table in made)
    files: dict[str, bytes | str] = {TABLES: TABLES_START + (text + "\n").encode()}
    files |= {f"{evaluation.file_name(table.title)}.csv": table.csv() for table in made}
    present = [out / name for name in files if out is not None and (out / name).exists()]
    if out is not None and present:
        page = out / TABLES
        if not (page.is_file() and page.read_bytes().startswith(TABLES_START)):
            reason = "exists and was not written by lastword tables"
            raise SettingError(f"{present[0]} {reason}; move it away, or give another folder with --out")
    if parquet is not None:
        write_parquet(answers, parquet)
    for name, content in files.items():
        if out is not None:
            write(out / name, content)
    print_markdown(text)
    for path in filter(None, (out, parquet)):
        typer.echo(f"lastword: wrote {path}", err=True)


def _read_records(paths: Sequence[Path]) -> list[Record]:
    """Return the records of all files in the paths, and show the progress."""
    from lastword.evaluate.journal import read_records, record_files

    files = [file for path in paths for file in record_files(path)]
    records: list[Record] = []
    with progress("files of records") as display:
        for number, file in enumerate(files):
            display.update(number, len(files))
            records += read_records(file)
    return records


def bench(
    models: Annotated[str, Option(help="Model names or folders, separated by commas.")] = options.DEFAULT_MODEL,
    recipes: Annotated[str, Option(help=BENCH_RECIPES)] = "fixed,paper,careful,fast,sampled",
    rows: Annotated[int, Option(help="Number of prompts.")] = 500,
    max_batch_size: Annotated[int | None, Option(help="Prompts decoded at the same time.")] = None,
    solo: Annotated[int, Option(help="Prompts to decode alone, too, and to compare.")] = 0,
    repeats: Annotated[int, Option(help="Timed runs; fewer where they take seconds. The median counts.")] = 1,
    out: Annotated[Path, path_option("The record to write.")] = Path("out/bench.json"),
    table: Annotated[Path | None, path_option("Print this record as Markdown; measure nothing.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Time the decode loop of models, recipe by recipe, on the same validation prompts.

    Every recipe decodes the prompts twice to warm up, then in timed runs (--repeats). The result is printed as
    a table and written as a record. To measure forward passes of any model shape without its weights, run
    python -m benchmarks.passes in the repository.

    Examples:

        lastword bench --recipes fast --rows 3 --solo 1 --dtype float32
        lastword bench --models tiny-llada-base,tiny-dream-base --max-batch-size 64
        lastword bench --table out/bench.json
    """
    from lastword import bench as benchmark
    from lastword.models.load import as_device

    def read(path: Path) -> benchmark.BenchRecord:
        return benchmark.read_record(path, benchmark.BenchRecord)

    if table is not None:
        print_markdown(benchmark.to_markdown(read(table)))
        return
    check_folder(out.parent)
    options.check_replaceable(out, "a record of lastword bench", read)

    def show(line: benchmark.BenchLine) -> None:
        typer.echo(f"{line.case}: {line.seconds:,.3f} s, {line.ms:,.2f} ms per forward pass", err=True)

    record = benchmark.bench(
        [name.strip() for name in models.split(",")],
        [name.strip() for name in recipes.split(",")],
        rows,
        max_batch_size=max_batch_size,
        device=as_device(device),
        dtype=dtype,
        repeats=repeats,
        solo=solo,
        on_line=show,
    )
    write(out, record.to_json())
    print_markdown(benchmark.to_markdown(read(out)))  # with rounded numbers, as in the file
    typer.echo(f"\nwrote {out}")
