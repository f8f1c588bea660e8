"""`lastword batch`: answer a file of prompts into a file of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from lastword.cli.errors import resumable
from lastword.cli.options import (
    DEFAULT_MODEL,
    AddressOption,
    BaseUrlOption,
    CalibrationOption,
    DeviceOption,
    DtypeOption,
    EngineOption,
    ModelOption,
    RecipeOption,
    SeedOption,
    ThreadsOption,
    WeightsOption,
    WorkersOption,
    as_path,
    path_option,
)

if TYPE_CHECKING:
    from lastword.batch.outcome import BatchProgress
    from lastword.cli.console import Showing
    from lastword.engines.base import Engine
    from lastword.engines.local import ModelSource
    from lastword.engines.options import EngineOptions


def batch(
    prompts: Annotated[
        Path,
        typer.Argument(
            parser=as_path,
            metavar="PROMPTS",
            help='.jsonl (objects with "prompt", "messages" or "tokens", or OpenAI\'s batch input) or '
            ".parquet.",
        ),
    ],
    out: Annotated[
        Path, path_option("The file of answers, .jsonl or .parquet. A run found there is resumed.")
    ],
    model: ModelOption = DEFAULT_MODEL,
    name: Annotated[
        Optional[str],
        typer.Option(help="What OpenAI's requests call the model. Default: as --model says."),
    ] = None,
    length: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    unmask: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    commit: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    cache: Annotated[Optional[str], typer.Option(help="As in generate.")] = None,
    block: Annotated[Optional[int], typer.Option(help="As in generate.")] = None,
    recipe: RecipeOption = None,
    temperature: Annotated[Optional[float], typer.Option(help="As in generate.")] = None,
    top_p: Annotated[Optional[float], typer.Option(help="As in generate.")] = None,
    top_k: Annotated[Optional[int], typer.Option(help="As in generate.")] = None,
    guidance: Annotated[Optional[float], typer.Option(help="As in generate.")] = None,
    rows: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 8,
    seed: SeedOption = 0,
    limit: Annotated[Optional[int], typer.Option(help="Prompts; all if left out.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap text in the chat template.")] = False,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order/--as-they-come",
            help="At the end, put answers in the order of the prompts, or leave them as they came.",
        ),
    ] = True,
    plain: Annotated[
        bool, typer.Option("--plain", help="Write plain lines for OpenAI's batch input, too.")
    ] = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    address: AddressOption = None,
    base_url: BaseUrlOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    weights: WeightsOption = None,
    calibration: CalibrationOption = "auto",
) -> None:
    """Answer a file of prompts; every answer is written as it comes.

    A run that is stopped or killed resumes where it was: give the same command again. A line that is no
    prompt, or whose answer fails, is written as failed with the reason.

    Examples:

      lastword batch prompts.jsonl --out answers.jsonl

      lastword batch prompts.parquet --out answers.parquet --recipe fast --engine processes --workers 2

      lastword batch requests.jsonl --out replies.jsonl --model tiny-llada-instruct --name my-model
    """
    from contextlib import closing
    from dataclasses import replace
    from functools import partial

    from lastword.batch.run import prepare
    from lastword.cli.console import progress
    from lastword.cli.generate import read_recipe
    from lastword.engines.local import ModelSource
    from lastword.engines.options import EngineOptions

    options = EngineOptions(engine, workers, threads, address, base_url)

    chosen = read_recipe(recipe).with_choices(
        length=length, unmask=unmask, commit=commit, cache=cache, block=block
    )
    draws = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "guidance": guidance}
    given = {word: value for word, value in draws.items() if value is not None}
    chosen = replace(chosen, sampling=replace(chosen.sampling, **given))
    ready = prepare(
        prompts, out, name=name or model, recipe=chosen, seed=seed, limit=limit, rows=rows, chat=chat,
        in_order=in_order, plain=plain,
    )  # fmt: skip
    kept = None if calibration == "none" else calibration
    source = ModelSource(model, device, dtype, kept, weights)
    with resumable(), closing(opened(options, source)) as answering, progress("prompts") as shown:
        outcome = ready.run(answering, partial(told, shown))
    typer.echo(str(outcome))


def opened(options: EngineOptions, source: ModelSource) -> Engine:
    """Whoever answers."""
    return options.open(source)


def told(shown: Showing, state: BatchProgress) -> None:
    """Show how far a batch is."""
    failed = f"{state.failed} failed" if state.failed else ""
    shown(state.done, state.total, state.seconds_left, failed)
