"""`lastword eval`: score a recipe on tasks, one record per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.options import DeviceOption, DtypeOption, LengthsOption, ModelOption


def evaluate(
    model: ModelOption = "tiny-llada-base",
    tasks: Annotated[
        str, typer.Option(help="Task names, separated by commas; tiny is all five embedded ones.")
    ] = "tiny",
    length: Annotated[Optional[str], typer.Option(help="As in generate. [survival:256]")] = None,
    unmask: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    commit: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    cache: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    block: Annotated[Optional[int], typer.Option(help="As in generate.")] = None,
    recipe: Annotated[
        Optional[Path], typer.Option(help="A recipe in JSON; other options override it.")
    ] = None,
    limit: Annotated[Optional[int], typer.Option(help="Samples per task; all if left out.")] = None,
    split: Annotated[str, typer.Option(help="test, or validation to choose settings on.")] = "test",
    rows: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 8,
    seed: Annotated[int, typer.Option(help="For everything random.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder of records. A run found there is resumed.")
    ] = Path("out/eval"),
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    lengths: LengthsOption = "auto",
) -> None:
    """Score a recipe on tasks and write one JSON record per sample as it goes.

    A run that is stopped or killed resumes where it was: give the same command again. Every recipe that
    was measured into the same folder is shown, each against the first.

    Examples:

      lastword eval --length fixed:256 --limit 4

      lastword eval --length survival:256 --limit 4

      lastword eval --model my/checkpoint --tasks algebra,reasoning --cache dual --block 32
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    import lastword
    from lastword.cli.generate import read_recipe
    from lastword.eval import Journal, tiny_tasks
    from lastword.eval import evaluate as run
    from lastword.eval.journal import read_records
    from lastword.eval.table import table

    chosen = read_recipe(recipe).with_choices(
        length=length or (None if recipe else "survival:256"),
        unmask=unmask,
        commit=commit,
        cache=cache,
        block=block,
    )
    asked = tiny_tasks([name.strip() for name in tasks.split(",")], split)
    loaded = lastword.load(
        model, device=device, dtype=dtype, lengths=None if lengths == "none" else lengths
    )
    journal = Journal(out / f"{Path(model).name}.{split}.jsonl")
    console = Console(stderr=True)
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        running = bar.add_task(model)
        run(
            loaded, model, asked, chosen, journal, limit=limit, rows=rows, seed=seed,
            progress=lambda done, total: bar.update(running, completed=done, total=total),
        )  # fmt: skip
    typer.echo(table(read_records(journal.path)))
