"""`lastword batch` and `calibrate`: answer a file of prompts, and compare answer lengths with predictions."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

import lastword
from lastword.cli import options
from lastword.cli.console import progress
from lastword.cli.errors import resumable
from lastword.cli.options import EngineOptions, ModelOptions, RecipeOptions, SamplingOptions, path_option
from lastword.errors import SettingError

FILE_OF_PROMPTS = '.jsonl (objects with "prompt", "messages" or "tokens", or OpenAI batch input) or .parquet.'
IN_ORDER = "Sort the answers by prompt at the end, or leave them in the order in which they finished."


def batch(
    prompts: Annotated[Path, Argument(parser=options.as_path, metavar="PROMPTS", help=FILE_OF_PROMPTS)],
    model_options: ModelOptions,
    recipe_options: SamplingOptions,
    engine_options: EngineOptions,
    out: Annotated[Path, path_option("Answers, .jsonl or .parquet. A stopped run is resumed.")],
    name: Annotated[str | None, Option(help="Model name in OpenAI's requests. Default: --model.")] = None,
    rows: options.BatchSize = 8,
    seed: options.Seed = 0,
    limit: Annotated[int | None, Option(help="Number of prompts. Default: all.")] = None,
    chat: options.Chat = False,
    in_order: Annotated[bool, Option("--in-order/--as-they-come", help=IN_ORDER)] = True,
    plain: Annotated[bool, Option("--plain", help="Write plain lines for OpenAI input, too.")] = False,
    calibration: options.CalibrationFile = "auto",
) -> None:
    """Answer a file of prompts; every answer is written as soon as it is finished.

    A run that was stopped or killed is resumed by the same command. For a line that is not a prompt, or whose
    answer fails, the reason is written instead of an answer.

    Examples:

        lastword batch prompts.jsonl --out answers.jsonl
        lastword batch prompts.parquet --out out.parquet --recipe fast --engine ray
        lastword batch requests.jsonl --out replies.jsonl --name my-model
    """
    from lastword.batch.progress import BatchProgress
    from lastword.batch.run import Batch

    prepared = Batch(
        prompts,
        out,
        name=name or model_options.name,
        recipe=recipe_options.build(),
        seed=seed,
        limit=limit,
        rows=rows,
        chat=chat,
        in_order=in_order,
        plain=plain,
    )
    source = model_options.source(calibration)
    with resumable(), closing(engine_options.open(source)) as engine, progress("prompts") as display:

        def show(state: BatchProgress) -> None:
            note = f"{state.failed} failed" if state.failed else ""
            display.update(state.done, state.total, seconds_left=state.seconds_left, note=note)

        outcome = prepared.run(engine, show)
    typer.echo(str(outcome))


def calibrate(
    prompts: Annotated[Path, path_option('One prompt per line, or .jsonl with "prompt" fields.')],
    model_options: ModelOptions,
    recipe_options: RecipeOptions,
    engine_options: EngineOptions,
    family_field: Annotated[str | None, Option(help="Field of a .jsonl file with the task family.")] = None,
    coverage: Annotated[float, Option(help="The share of answers that must fit.")] = 0.9,
    limit: Annotated[int | None, Option(help="Slots of probe and answer. Default: the model's.")] = None,
    interpretation: options.InterpretationName = "auto",
    estimate: Annotated[str, Option(help="mean, quantile:0.9, cheapest:300.")] = "mean",
    ends: options.Ends = "document",
    rows: options.BatchSize = 8,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    out: Annotated[Path | None, path_option("The file to write. Default: lengths.json of the model.")] = None,
) -> None:
    """Compare the lengths of a model's answers with the predictions, and save the ratios.

    No labels are needed. Without --recipe, answers are decoded with threshold:0.9 in blocks of 32 (--block 0:
    no blocks). The file is written into the model's folder, from which it is loaded with the model, or as
    MODEL.lengths.json, to be given with --calibration. Then --length calibrated:0.9 plans a canvas that is long
    enough for nine answers in ten, if they are decoded with the same recipe, and with --chat if it was given here.

    Examples:

        lastword calibrate --prompts prompts.txt
        lastword generate "Problem: Solve for n: 4n + 3 = 35." \\
          --length calibrated:0.9 --calibration tiny-llada-base.lengths.json \\
          --unmask threshold:0.9 --block 32
        lastword calibrate --model my/checkpoint --prompts prompts.jsonl \\
          --family-field task --chat --limit 512
    """
    from lastword.calibration import FILE_NAME, Calibration, fit
    from lastword.io.files import user_path, write
    from lastword.io.prompts import read_prompts
    from lastword.recipe.resolve import default_block
    from lastword.recipe.text import parse_part

    if engine_options.engine == "openai":
        raise SettingError(
            "--engine openai was given; a server does not report its weights, which a calibration needs: "
            "calibrate where the model is (--engine local, processes, ray)"
        )
    if recipe_options.length is not None:
        raise SettingError("--length was given; answers are calibrated on a fixed canvas: set its --limit")
    folder = user_path(model_options.name)
    target = out or (folder / FILE_NAME if folder.is_dir() else Path(f"{folder.name}.{FILE_NAME}"))
    options.check_replaceable(target, "a calibration", Calibration.from_file)
    texts, families = read_prompts(prompts, family_field, chat=chat)
    recipe = fit.FAST
    if recipe_options.recipe is not None:
        recipe = options.read_recipe(recipe_options.recipe)
        recipe = replace(recipe, length=fit.FAST.length, block=default_block(recipe))
    recipe = recipe.with_choices(**recipe_options.parts | {"block": recipe_options.block or None})
    if recipe_options.block == 0:
        recipe = replace(recipe, block=None)
    with closing(engine_options.open(model_options.source())) as engine, progress("answers") as display:
        calibration = fit.calibrate(
            engine.model_info,
            texts,
            families,
            limit=limit,
            ends=ends,
            interpretation=parse_part("interpretation", interpretation),
            estimate=parse_part("estimate", estimate),
            coverage=coverage,
            recipe=recipe,
            max_batch_size=rows,
            seed=seed,
            engine=display.count_replies(engine),
            progress=display.update,
        )
    write(target, calibration.to_json())
    table = Table("family", "answers", "cut", "middle factor", f"factor for {coverage:.0%}")
    warnings = []
    for family, ratios in calibration.families.items():
        try:
            factor = f"{ratios.factor(coverage):.3f}"
        except SettingError as error:  # too many answers were cut
            factor = "unknown"
            warnings.append(f"lastword: {family}: {error}")
        table.add_row(family, str(len(ratios)), str(ratios.truncated), f"{ratios.scale:.3f}", factor)
    Console().print(table)
    for warning in warnings:
        typer.echo(warning, err=True)
    label = replace(recipe, length=lastword.Calibrated(coverage)).label()
    in_chat = ", with --chat" if calibration.made_with["chat"] else ""
    typer.echo(f"wrote {target}; decode with the same recipe: {label}{in_chat}")
    if target != folder / FILE_NAME:
        typer.echo(f"use it with --calibration {shlex.quote(str(target))}")
