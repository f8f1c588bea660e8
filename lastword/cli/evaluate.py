"""`lastword eval`: score a recipe on tasks, one record per sample."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lastword.cli.options import (
    AddressOption,
    BaseUrlOption,
    CalibrationOption,
    DeviceOption,
    DtypeOption,
    EngineOption,
    RecipeOption,
    SeedOption,
    ThreadsOption,
    WeightsOption,
    WorkersOption,
    path_option,
)
from lastword.cli.reporting import resumable


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
    length: Annotated[
        Optional[str],
        typer.Option(help="As in generate."),
    ] = None,
    unmask: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    commit: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    cache: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    block: Annotated[Optional[int], typer.Option(help="As in generate.")] = None,
    recipe: RecipeOption = None,
    shots: Annotated[
        Optional[int], typer.Option(help="Examples in a prompt; each task's own if left out.")
    ] = None,
    chat: Annotated[
        Optional[bool],
        typer.Option("--chat/--no-chat", help="Default: the preset's, or where the model has a template."),
    ] = None,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    split: Annotated[str, typer.Option(help="test, or validation to choose settings on.")] = "test",
    rows: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 8,
    seed: SeedOption = 0,
    out: Annotated[Path, path_option("Folder of records. A run found there is resumed.")] = Path("out/eval"),
    unsafe_code: Annotated[
        bool,
        typer.Option("--unsafe-code", help="Where no sandbox works, run the model's code without one."),
    ] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    weights: WeightsOption = None,
    calibration: CalibrationOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    address: AddressOption = None,
    base_url: BaseUrlOption = None,
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

    from lastword.cli.progress import progress
    from lastword.cli.tabled import print_markdown
    from lastword.cli.watched import Watched
    from lastword.engines.local import ModelSource
    from lastword.engines.options import EngineOptions
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
        asks_in_chat = Layout.of(opened.model, chat=plan.chat).chat
        for setting in plan.settings:
            with progress(f"samples of {','.join(setting.tasks)}") as shown:
                run(
                    opened.model, plan.model, setting.load(split=split, chat=asks_in_chat), setting.recipe,
                    journal, limit=limit, rows=rows, seed=seed, chat=asks_in_chat, bos=plan.bos,
                    engine=Watched(opened, shown.waiting), progress=shown.count,
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

    from lastword.cli.generate import read_recipe
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
            given = read_recipe(recipe)
            plan = replace(plan, settings=tuple(replace(s, recipe=given) for s in plan.settings))
        return plan
    names = names or ("tiny",)
    chosen = read_recipe(recipe)
    return Preset("Tasks of your choice.", "tiny-llada-base", (Setting(names, chosen),))
