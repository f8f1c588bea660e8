"""`lastword eval`, `drift`, `tables` and `bench`: measure recipes, and compare the records of measurements."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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

TASKS = "Task names, separated by commas: algebra, gsm8k ... Default: tiny (all embedded tasks), or those of --preset."
INCLUDE_PATH = "Folder with more tasks (YAML) of lm-evaluation-harness. Repeatable."
DATA = "Local dataset of a harness task: a file, or a folder with one file per split. Repeatable."


@dataclass(frozen=True)
class TaskOptions:
    """The options that select the samples and the folder for their records."""

    PANEL: ClassVar[str] = "Tasks"

    tasks: Annotated[str | None, Option(help=TASKS)] = None
    preset: Annotated[str | None, Option(help="Settings of an evaluation by name, such as paper/llada-base.")] = None
    include_path: Annotated[list[Path] | None, path_option(INCLUDE_PATH)] = None
    data: Annotated[list[str] | None, Option(metavar="TASK=PATH", help=DATA)] = None
    limit: options.Limit = None
    batch_size: options.BatchSize = 8
    out: Annotated[Path, path_option("Folder of records. The same command resumes a stopped run.")] = Path("out/eval")

    def plan(self, model: str | None, **changes: Any) -> Preset:
        """Return --preset, reduced to --tasks if given, or a preset of --tasks; `changes` apply to all settings."""
        from lastword.evaluate import presets

        names = tuple(name.strip() for name in self.tasks.split(",")) if self.tasks is not None else ()
        if "" in names:
            raise TaskError(f"--tasks {self.tasks!r} contains an empty name; give names separated by commas")
        changes |= {"include_path": tuple(self.include_path or ()), "data": self._data()}
        if self.preset is None:
            setting = presets.Setting(names or ("tiny",), options.read_recipe(None))
            plan = presets.Preset("Tasks of your choice.", options.DEFAULT_MODEL, (setting,))
        else:
            plan = presets.preset(self.preset)
            plan = plan.only(names) if names else plan
        settings = tuple(replace(setting, **changes) for setting in plan.settings)
        known = [name for setting in settings for name in setting.tasks]
        if unused := [name for name, _ in self._data() if name not in known]:
            raise TaskError(f"--data has a dataset for {unused[0]!r}, which is not among the tasks {', '.join(known)}")
        return replace(plan, settings=settings, model=model or plan.model)

    def _data(self) -> tuple[tuple[str, Path], ...]:
        """Return the local datasets by name of a task."""
        pairs = [text.partition("=") for text in self.data or ()]
        for name, separator, path in pairs:
            if not (name and separator and path):
                raise TaskError(f"--data {name}{separator}{path} was given; write TASK=PATH, as in gsm8k=data/gsm8k")
        return tuple((name, options.as_path(path)) for name, _, path in pairs)

    def journal(self, plan: Preset, kind: str, split: str = "test") -> Journal:
        """Check the tasks and the folder, and return the journal MODEL.KIND.jsonl in the folder."""
        from lastword.evaluate import Journal, presets

        for setting in plan.settings:
            presets.check_tasks(setting.tasks, split, setting.include_path)
        return Journal(self.out / f"{Path(plan.model).name}.{kind}.jsonl")


def evaluate(
    model_options: ModelOptions,
    task_options: TaskOptions,
    recipe_options: RecipeOptions,
    engine_options: EngineOptions,
    show: Annotated[bool, Option("--show", help="Print the settings and stop, without evaluation.")] = False,
    shots: Annotated[int | None, Option(help="Number of few-shot examples per prompt. Default: the task's.")] = None,
    chat: options.Chat = None,
    split: Annotated[str, Option(help="Split of embedded tasks: test, or validation (to choose settings).")] = "test",
    seed: options.Seed = 0,
    unsafe_code: Annotated[bool, Option("--unsafe-code", help="Allow code to run without a sandbox.")] = False,
    calibration: options.CalibrationFile = "auto",
    import_modules: options.Imports = None,
) -> None:
    """Score a recipe on tasks and write one record per sample.

    The same command resumes a run that was stopped or killed. At the end, a table compares all recipes whose records
    are in the folder with the first one.

    Examples:

        lastword eval --length fixed:256 --limit 4
        lastword eval --recipe fast --limit 4 --engine processes --workers 2
        lastword eval --model GSAI-ML/LLaDA-8B-Base --tasks gsm8k --length survival
        lastword eval --tasks gsm8k --data gsm8k=data/gsm8k --shots 0 --limit 20
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
    plan = task_options.plan(model_options.model, **changes).with_recipes(recipe_options.override)
    plan = replace(plan, chat=plan.chat if chat is None else chat)
    if show:
        typer.echo(plan.describe())
        return
    journal = task_options.journal(plan, split, split)
    source = replace(model_options, model=plan.model).source(calibration)
    with resumable(), closing(engine_options.open(source, model_options.threads)) as engine:
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
                    max_batch_size=task_options.batch_size,
                    seed=seed,
                    chat=in_chat,
                    bos=plan.bos,
                    engine=engine,
                    progress=display.update,
                )
    records = read_records(journal.path)
    parts = [*(table.markdown() for table in evaluation.tables(records)), evaluation.code_summary(records)]
    print_markdown("\n\n".join(filter(None, parts)))
    recipes = {record.recipe for record in records}
    advice = ""
    if not any(isinstance(recipe.length, Fixed) for recipe in recipes):
        block = next((f" --block {recipe.block}" for recipe in recipes if recipe.block), "")
        advice = f"to compare with a fixed canvas, repeat the command with --length fixed{block}, then run "
    print_next_step(journal.path, len(records), advice, import_modules or ())


def print_next_step(path: Path, records: int, advice: str = "", import_modules: Sequence[str] = ()) -> None:
    """Print the number of records and the command that compares them, after the advice."""
    words = ["--records", str(path.parent), *(word for name in import_modules for word in ("--import", name))]
    tables = f"lastword tables {shlex.join(words)}"
    typer.echo(f"lastword: {records} records in {path}; {advice or 'compare them: '}{tables}", err=True)


def drift(
    model_options: ModelOptions,
    task_options: TaskOptions,
    steps: Annotated[
        str, Option(help="Decoding steps after which the length is predicted, separated by commas.")
    ] = "2,5,7,10",
    slots: options.Slots = None,
    import_modules: options.Imports = None,
) -> None:
    """Measure how the expected length changes over the first decoding steps (the paper's step ablation).

    Decoding stops after the last of --steps. A sample that was measured at other steps is measured again at all old and
    new steps. Prompts after which --slots masks exceed the model's context are skipped. Blocks and caches of a preset
    are ignored. `lastword tables` shows the records.

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
                max_batch_size=task_options.batch_size,
                chat=chat,
                bos=plan.bos,
                recipe=setting.recipe,
                progress=display.update,
            )
    print_markdown(drift_table(records).markdown())
    print_next_step(journal.path, len(records), import_modules=import_modules or ())


BENCH_RECIPES = "Recipe names, separated by commas. sampled is careful at temperature 0.7."
BENCH_BATCH_SIZE = f"{options.BATCH_SIZES} Default: as many as memory for logits allows, at most 512."
TABLES = "tables.md"
TABLES_START = b"<!-- lastword tables -->\n"


def tables(
    records: Annotated[list[Path], path_option("File or folder of records of eval or drift. Repeatable.")],
    timed: Annotated[
        list[Path] | None, path_option("File or folder of records from which seconds are taken. Repeatable.")
    ] = None,
    out: Annotated[Path | None, path_option("Folder for the tables as Markdown and CSV.")] = None,
    parquet: Annotated[Path | None, path_option("Parquet file for all records.")] = None,
    import_modules: options.Imports = None,
) -> None:
    """Compare the recipes in records, with one table per benchmark.

    The baseline of a model is its longest fixed canvas, or its first recipe if there is none. "covered" is the share of
    the baseline's answers that fit into a recipe's canvas, and "waste" the mean number of its unused slots. If a recipe
    has your own parts, give --import with the module that registers them. For the tables and figures of the paper, run
    python -m benchmarks.paper in a clone.

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
    if out is not None:
        page, present = out / TABLES, [name for name in files if (out / name).exists()]
        if present and not (page.is_file() and page.read_bytes().startswith(TABLES_START)):
            reason = "exists and was not written by lastword tables"
            raise SettingError(f"{out / present[0]} {reason}; move it away, or give another folder with --out")
        for name, content in files.items():
            write(out / name, content)
    if parquet is not None:
        write_parquet(answers, parquet)
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
    models: Annotated[
        str, Option(help="Models as in --model of other commands, separated by commas.")
    ] = options.DEFAULT_MODEL,
    recipes: Annotated[str, Option(help=BENCH_RECIPES)] = "fixed,paper,careful,fast,sampled",
    limit: Annotated[int, Option(help="Use the first N prompts.")] = 500,
    batch_size: Annotated[int | None, Option(help=BENCH_BATCH_SIZE)] = None,
    solo: Annotated[int, Option(help="Number of prompts that are also decoded alone, to compare the answers.")] = 0,
    repeats: Annotated[int, Option(help="Timed runs per recipe, of which the median is reported.")] = 1,
    out: Annotated[Path, path_option("JSON file to write.")] = Path("out/bench.json"),
    table: Annotated[Path | None, path_option("Print the table of this record and stop.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Time recipes on models, with the same validation prompts.

    Each recipe decodes the prompts twice to warm up, then --repeats times. Neither is repeated once it has taken 30
    seconds (2 on a CPU). The result is printed as a table and written to a file. To time forward passes of a model
    shape without its weights, run python -m benchmarks.passes in a clone.

    Examples:

        lastword bench --recipes fast --limit 3 --solo 1 --dtype float32
        lastword bench --models tiny-llada-base,tiny-dream-base --batch-size 64
        lastword bench --table out/bench.json
    """
    from lastword import bench as benchmark
    from lastword.models.load import as_device

    def read(path: Path) -> benchmark.BenchRecord:
        return benchmark.read_record(path, benchmark.BenchRecord)

    if table is not None:
        print_markdown(benchmark.to_markdown(read(table)))
        return
    options.check_replaceable(out, "a record of lastword bench", read)

    def show(line: benchmark.BenchLine) -> None:
        typer.echo(f"{line.case}: {line.seconds:,.3f} s, {line.ms:,.2f} ms per forward pass", err=True)

    record = benchmark.bench(
        [name.strip() for name in models.split(",")],
        [name.strip() for name in recipes.split(",")],
        limit,
        max_batch_size=batch_size,
        device=as_device(device),
        dtype=dtype,
        repeats=repeats,
        solo=solo,
        on_line=show,
    )
    write(out, record.to_json())
    print_markdown(benchmark.to_markdown(read(out)))  # with rounded numbers, as in the file
    typer.echo(f"\nwrote {out}")
