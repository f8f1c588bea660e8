"""`lastword batch`: answer a file of prompts into a file of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from lastword.cli import options
from lastword.cli.errors import resumable
from lastword.cli.options import path_option

if TYPE_CHECKING:
    from lastword.batch.progress import BatchProgress
    from lastword.cli.console import Showing
    from lastword.engines import EngineOptions
    from lastword.engines.base import Engine
    from lastword.engines.local import ModelSource


def batch(
    prompts: Annotated[
        Path,
        typer.Argument(
            parser=options.as_path,
            metavar="PROMPTS",
            help='.jsonl (objects with "prompt", "messages" or "tokens", or OpenAI\'s batch input) or '
            ".parquet.",
        ),
    ],
    out: Annotated[
        Path,
        path_option("The file of answers, .jsonl or .parquet. A stopped run is resumed."),
    ],
    model: options.Model = options.DEFAULT_MODEL,
    name: Annotated[
        Optional[str],
        typer.Option(help="Model name in OpenAI's requests. Default: the value of --model."),
    ] = None,
    length: options.Length = None,
    unmask: options.Unmask = None,
    commit: options.Commit = None,
    cache: options.Cache = None,
    block: options.Block = None,
    recipe: options.RecipeName = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    guidance: options.Guidance = None,
    rows: options.Rows = 8,
    seed: options.Seed = 0,
    limit: Annotated[Optional[int], typer.Option(help="Number of prompts. Default: all.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap text in the chat template.")] = False,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order/--as-they-come",
            help="Sort the answers by prompt at the end, or leave them in the order in which they finished.",
        ),
    ] = True,
    plain: Annotated[
        bool, typer.Option("--plain", help="Write plain lines for OpenAI's batch input as well.")
    ] = False,
    engine: options.EngineName = "local",
    workers: options.Workers = None,
    threads: options.Threads = None,
    address: options.Address = None,
    base_url: options.BaseUrl = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = "auto",
) -> None:
    """Answer a file of prompts; every answer is written when it is finished.

    A run that was stopped or killed is resumed by the same command. A line that is not a prompt, or whose
    answer fails, is written as failed with the reason.

    Examples:

      lastword batch prompts.jsonl --out answers.jsonl

      lastword batch prompts.parquet --out answers.parquet --recipe fast --engine processes --workers 2

      lastword batch requests.jsonl --out replies.jsonl --model tiny-llada-instruct --name my-model
    """
    from contextlib import closing
    from functools import partial

    from lastword.batch.run import Batch
    from lastword.cli.console import progress
    from lastword.engines import EngineOptions
    from lastword.engines.local import ModelSource

    engine_options = EngineOptions(engine, workers, threads, address, base_url)
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "guidance": guidance}
    chosen = options.build_recipe(
        recipe, sampling, length=length, unmask=unmask, commit=commit, cache=cache, block=block
    )
    prepared = Batch(
        prompts, out, name=name or model, recipe=chosen, seed=seed, limit=limit, rows=rows, chat=chat,
        in_order=in_order, plain=plain,
    )  # fmt: skip
    source = ModelSource(model, device, dtype, options.calibration_source(calibration), weights)
    with resumable(), closing(open_engine(engine_options, source)) as opened, progress("prompts") as display:
        outcome = prepared.run(opened, partial(show_progress, display))
    typer.echo(str(outcome))


def open_engine(engine_options: EngineOptions, source: ModelSource) -> Engine:
    """Open the engine of the command; tests replace it."""
    return engine_options.open(source)


def show_progress(display: Showing, state: BatchProgress) -> None:
    """Show how many prompts of a batch are answered."""
    failed = f"{state.failed} failed" if state.failed else ""
    display(state.done, state.total, state.seconds_left, failed)
