"""`lastword eval`, `drift` and `tables`: measure recipes on tasks and compare the records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from lastword.cli import options
from lastword.cli.errors import resumable
from lastword.cli.options import path_option

if TYPE_CHECKING:
    from lastword.cli.console import Showing
    from lastword.evaluate.records import Record


def evaluate(
    model: Annotated[
        Optional[str],
        typer.Option(
            "--model",
            "-m",
            help="A checkpoint folder or a hub name. Default: the preset's, or tiny-llada-base.",
        ),
    ] = None,
    tasks: Annotated[
        Optional[str],
        typer.Option(
            help="Names, separated by commas: tiny (all five embedded ones), one of those, or any "
            "generating task of lm-evaluation-harness: gsm8k, bbh ... Default: the preset's, or tiny."
        ),
    ] = None,
    preset: Annotated[
        Optional[str],
        typer.Option(help="A set-up by name, such as paper/llada-base; other options override it."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Say what would be run, and leave.")] = False,
    length: options.Length = None,
    unmask: options.Unmask = None,
    commit: options.Commit = None,
    cache: options.Cache = None,
    block: options.Block = None,
    recipe: options.RecipeName = None,
    shots: Annotated[
        Optional[int], typer.Option(help="Examples in a prompt; each task's own if left out.")
    ] = None,
    chat: Annotated[
        Optional[bool],
        typer.Option("--chat/--no-chat", help="Default: the preset's, or where the model has a template."),
    ] = None,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    split: Annotated[str, typer.Option(help="test, or validation to choose settings on.")] = "test",
    rows: options.Rows = 8,
    seed: options.Seed = 0,
    out: Annotated[Path, path_option("Folder of records. A run found there is resumed.")] = Path("out/eval"),
    unsafe_code: Annotated[
        bool,
        typer.Option("--unsafe-code", help="Where no sandbox works, run the model's code without one."),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = "auto",
    engine: options.EngineName = "local",
    workers: options.Workers = None,
    threads: options.Threads = None,
    address: options.Address = None,
    base_url: options.BaseUrl = None,
) -> None:
    """Score a recipe on tasks and write one JSON record per sample as it goes.

    A run that is stopped or killed resumes where it was: give the same command again. Every recipe that
    was measured into the same folder is shown, each against the first.

    Examples:

      lastword eval --length fixed:256 --limit 4

      lastword eval --recipe fast --limit 4

      lastword eval --model GSAI-ML/LLaDA-8B-Base --tasks gsm8k,mbpp --length survival --limit 100

      lastword eval --recipe fast --limit 4 --engine processes --workers 2

      lastword eval --preset paper/llada-base --show

      lastword eval --preset paper/llada-base --tasks gsm8k --length fixed:1024
    """
    from contextlib import closing
    from dataclasses import replace

    from lastword.cli.console import print_markdown, progress
    from lastword.cli.watched import Watched
    from lastword.engines import EngineOptions
    from lastword.engines.local import ModelSource
    from lastword.evaluate import Journal
    from lastword.evaluate.journal import read_records
    from lastword.evaluate.run import Layout, check_counts
    from lastword.evaluate.run import evaluate as run
    from lastword.evaluate.settings import check_tasks
    from lastword.io.files import check_folder
    from lastword.paper.arms import arms_of
    from lastword.paper.overview import code, tables
    from lastword.sandbox.runner import UNSAFE

    asking = EngineOptions(engine, workers, threads, address, base_url)
    if unsafe_code:
        os.environ[UNSAFE] = "1"
    plan = planned(preset, tasks, recipe).with_choices(
        length=length, unmask=unmask, commit=commit, cache=cache, block=block
    )
    if shots is not None:
        plan = replace(plan, settings=tuple(replace(s, shots=shots) for s in plan.settings))
    plan = replace(plan, model=model or plan.model, chat=plan.chat if chat is None else chat)
    if show:
        typer.echo(plan.described())
        return
    check_counts("eval", rows, limit)
    check_tasks([name for setting in plan.settings for name in setting.tasks], split)
    check_folder(out)
    kept = None if calibration == "none" else calibration
    source = ModelSource(plan.model, device, dtype, kept, weights)
    journal = Journal(out / f"{Path(plan.model).name}.{split}.jsonl")
    with resumable(), closing(asking.open(source)) as opened:
        asks_in_chat = Layout.of(opened.model_info, chat=plan.chat).chat
        for setting in plan.settings:
            with progress(f"samples of {','.join(setting.tasks)}") as shown:
                run(
                    opened.model_info, plan.model, setting.load(split=split, chat=asks_in_chat),
                    setting.recipe, journal, limit=limit, rows=rows, seed=seed, chat=asks_in_chat,
                    bos=plan.bos, engine=Watched(opened, shown.waiting), progress=shown.count,
                )  # fmt: skip
    records = read_records(journal.path)
    print_markdown("\n\n".join(filter(None, (tables(records), code(records)))))
    wrote(journal.path, len(records), compared=any(arms.fixed for arms in arms_of(records)))


def wrote(path: Path, records: int, *, compared: bool = True) -> None:
    """Say what is there now, and what to type next: tables need a fixed canvas to compare with."""
    tables = f"lastword tables --records {shlex.quote(str(path.parent))}"
    following = f"compare them: {tables}"
    if not compared:
        following = f"to compare, the same command with --length fixed, then {tables}"
    typer.echo(f"lastword: {records} records in {path}; {following}", err=True)


def planned(preset: str | None, tasks: str | None, recipe: str | None = None) -> Any:
    """What is to be run: the preset, or the tasks as one setting."""
    from dataclasses import replace

    from lastword.errors import TaskError
    from lastword.evaluate.presets import Preset
    from lastword.evaluate.presets import preset as find
    from lastword.evaluate.settings import Setting

    names = tuple(name.strip() for name in tasks.split(",")) if tasks is not None else ()
    if "" in names:
        raise TaskError(f"--tasks {tasks!r} names nothing in one place; give names, parted by commas")
    if preset is not None:
        plan = find(preset).only(names) if names else find(preset)
        if recipe is not None:
            given = options.read_recipe(recipe)
            plan = replace(plan, settings=tuple(replace(s, recipe=given) for s in plan.settings))
        return plan
    names = names or ("tiny",)
    chosen = options.read_recipe(recipe)
    return Preset("Tasks of your choice.", "tiny-llada-base", (Setting(names, chosen),))


def drift(
    model: Annotated[
        Optional[str], typer.Option("--model", "-m", help="As in eval: default: the preset's.")
    ] = None,
    tasks: Annotated[Optional[str], typer.Option(help="As in eval: names, separated by commas.")] = None,
    preset: Annotated[
        Optional[str], typer.Option(help="As in eval; blocks and caches have no part in it.")
    ] = None,
    steps: Annotated[str, typer.Option(help="Denoising steps, separated by commas.")] = "2,5,7,10",
    slots: Annotated[
        Optional[int],
        typer.Option(help="Slots of the canvas that is read; the preset's, or the model's own."),
    ] = None,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    rows: options.Rows = 8,
    out: Annotated[Path, path_option("Folder of records, as for eval.")] = Path("out/eval"),
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Read the expected length before the first denoising step and after some: the paper's step ablation.

    Decoding stops after the last step asked for. A sample that was measured at other steps is measured
    again, at those too; a prompt that leaves no room for all slots is left out. Records go where
    `lastword eval` puts its own, and `lastword tables` shows them.

    Examples:

      lastword drift --limit 2 --tasks algebra --slots 128 --out out/eval-demo

      lastword drift --preset paper/llada-base --out out/paper-8b
    """
    import lastword
    from lastword.cli.console import print_markdown, progress
    from lastword.errors import SettingError
    from lastword.evaluate import Journal
    from lastword.evaluate import drift as measure
    from lastword.evaluate.presets import CANVAS
    from lastword.evaluate.run import Layout
    from lastword.evaluate.settings import check_tasks
    from lastword.io.files import check_folder
    from lastword.paper.arms import arms_of
    from lastword.paper.tables import drift as table
    from lastword.policies.length.survival import Survival
    from lastword.validation import short_repr

    try:
        asked = [int(step) for step in steps.split(",")]
    except ValueError as wrong:
        raise SettingError(
            f"--steps {short_repr(steps)} was given; it takes whole numbers: 2,5,7,10"
        ) from wrong
    plan = planned(preset, tasks)
    check_tasks([name for setting in plan.settings for name in setting.tasks])
    name = model or plan.model
    canvas = CANVAS if slots is None and preset else slots
    check_folder(out)
    loaded = lastword.load(name, device=device, dtype=dtype)
    chat = Layout.of(loaded, chat=plan.chat).chat
    journal = Journal(out / f"{Path(name).name}.drift.jsonl")
    found = []
    for setting in plan.settings:
        with progress(f"prompts of {','.join(setting.tasks)}") as bar:
            found += measure(
                loaded, name, setting.load(chat=chat), journal, length=Survival(canvas), steps=asked,
                limit=limit, rows=rows, chat=chat, bos=plan.bos, recipe=setting.recipe,
                progress=bar.count,
            )  # fmt: skip
    print_markdown(table(arms_of(found)).markdown())
    wrote(journal.path, len(found))


TABLES = "tables.md"  # written first: it tells a folder of ours
BEGINNING = b"**Table "


def tables(
    records: Annotated[list[Path], path_option("Files or folders of records; may be repeated.")],
    timed: Annotated[
        Optional[list[Path]],
        path_option("Records to take seconds from, if other ones; may be repeated."),
    ] = None,
    out: Annotated[Optional[Path], path_option("Folder for Markdown, CSV and figures as well.")] = None,
    parquet: Annotated[
        Optional[Path], path_option("All records as one flat table, for DuckDB or pandas.")
    ] = None,
    figures: Annotated[
        bool, typer.Option(help="Draw figures into --out, if a fixed canvas was measured.")
    ] = True,
) -> None:
    """Print the survival paper's tables from records, its published values beside them.

    Which recipe is the baseline, the prediction, DAEDAL and so on is read from the recipes: the longest fixed
    canvas is the baseline, and the prediction is compared with it under the same rule. The same records
    always make the same bytes.

    Examples:

      lastword tables --records out/eval

      lastword tables --records out/eval --out out/tables --parquet out/records.parquet
    """
    from lastword.cli.console import print_markdown, progress
    from lastword.errors import SettingError
    from lastword.evaluate.parquet import write_parquet
    from lastword.io.files import check_folder, check_target, write
    from lastword.paper.arms import arms_of
    from lastword.paper.figures import save_figures
    from lastword.paper.tables import paper_tables
    from lastword.viz.figures import matplotlib_of

    with progress("files of records") as shown:
        found = _read(records, shown)
        clocked = _read(timed, shown) if timed else None
    compared = any(arms.fixed for arms in arms_of(found))  # figures compare with a fixed canvas
    drawn = out is not None and figures and compared
    if drawn:
        matplotlib_of()  # if it is missing, say so before anything is written
    if out is not None:
        check_folder(out)
    if parquet is not None:
        check_folder(parquet.parent)
        check_target(parquet)
    read = [*records, *(timed or ())]
    if parquet is not None and parquet.exists() and any(map(parquet.samefile, read)):
        raise SettingError(f"{parquet} holds the records that are read; export them to another file")
    with progress("making tables"):
        made = paper_tables(found, clocked)
    if not made and parquet is None:
        raise SettingError(
            f"{', '.join(map(str, records))}: nothing to compare was found in {len(found)} records; measure "
            "a fixed canvas and a prediction: lastword eval --length fixed:256, then --length survival:256"
        )
    files = {f"{table.name.lower().replace(' ', '-')}.csv": table for table in made}
    if out is not None:
        _check_ours(out, [TABLES, *files])
    if parquet is not None:
        write_parquet(found, parquet)
    text = "\n\n".join(table.markdown() for table in made)
    if out is not None:
        write(out / TABLES, text + "\n")
        for name, table in files.items():
            write(out / name, table.csv())
        if drawn:
            with progress("drawing figures"):
                save_figures(found, out)
    print_markdown(text)
    for path in filter(None, (out, parquet)):
        typer.echo(f"lastword: wrote {path}", err=True)


def _read(paths: Sequence[Path], shown: Showing) -> list[Record]:
    """Every record, file by file."""
    from lastword.evaluate.journal import read_records, record_files

    files = [file for path in paths for file in record_files(path)]
    found: list[Record] = []
    shown(0, len(files))
    for number, file in enumerate(files, 1):
        found += read_records(file)
        shown(number, len(files))
    return found


def _check_ours(out: Path, names: list[str]) -> None:
    """Replace tables of an earlier run, and no file of the user's that has the name of one."""
    from lastword.errors import SettingError

    present = [name for name in names if (out / name).exists()]
    page = out / TABLES
    if present and not (page.is_file() and page.read_bytes().startswith(BEGINNING)):
        raise SettingError(
            f"{out / present[0]} is there already and was not written by lastword tables; move it away, or "
            "give another folder (--out)"
        )
