"""`lastword calibrate`: learn how long a model's answers come out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli import options
from lastword.cli.options import path_option
from lastword.errors import CheckpointError, SettingError


def calibrate(
    prompts: Annotated[
        Path,
        path_option('One prompt a line, or a .jsonl file of objects with a "prompt".'),
    ],
    model: options.Model = options.DEFAULT_MODEL,
    family_field: Annotated[
        Optional[str], typer.Option(help="The field of a .jsonl file that names the task family.")
    ] = None,
    coverage: Annotated[float, typer.Option(help="The share of answers that should fit.")] = 0.9,
    limit: Annotated[
        Optional[int],
        typer.Option(help="Masks of the probe, and slots to finish on; the model's own if left out."),
    ] = None,
    reading: Annotated[str, typer.Option(help="As in predict.")] = "auto",
    estimate: Annotated[str, typer.Option(help="mean, quantile:0.9, cheapest:300.")] = "mean",
    ends: Annotated[str, typer.Option(help="As in predict.")] = "document",
    recipe: options.RecipeName = None,
    unmask: Annotated[
        Optional[str], typer.Option(help="As in generate; threshold:0.9 without a recipe.")
    ] = None,
    block: Annotated[
        Optional[int], typer.Option(help="As in generate, 0 for none; 32 without a recipe.")
    ] = None,
    cache: options.Cache = None,
    rows: options.Rows = 8,
    seed: options.Seed = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap text in the chat template.")] = False,
    out: Annotated[
        Optional[Path],
        path_option(
            "The file to write. Default: lengths.json in the model's folder, or MODEL.lengths.json here for "
            "a model without one."
        ),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    engine: options.EngineName = "local",
    workers: options.Workers = None,
    threads: options.Threads = None,
    address: options.Address = None,
) -> None:
    """Compare a model's finished answers with what was predicted, and keep the ratios.

    No labels are needed; the length of a recipe is left out. The model finds the file in its folder, or is
    given it with --calibration, and --length calibrated:0.9 then plans a canvas that nine answers in ten
    fit, asked (--chat or not) and decoded as they were here.

    Examples:

      lastword calibrate --prompts prompts.txt

      lastword generate "Problem: Solve for n: 4n + 3 = 35." --length calibrated:0.9 \\
        --calibration tiny-llada-base.lengths.json --unmask threshold:0.9 --block 32

      lastword calibrate --model my/checkpoint --prompts asked.jsonl --family-field task --chat --limit 512
    """
    from contextlib import closing
    from dataclasses import replace

    from rich.console import Console
    from rich.table import Table

    import lastword
    from lastword.calibration import FILE_NAME
    from lastword.calibration.fit import FAST
    from lastword.calibration.fit import calibrate as learn
    from lastword.cli.console import progress
    from lastword.cli.watched import Watched
    from lastword.engines import OPENAI, EngineOptions
    from lastword.engines.local import ModelSource
    from lastword.io.files import user_path, write
    from lastword.io.prompts import read_prompts
    from lastword.recipe.resolve import default_block
    from lastword.recipe.text import parse_part

    if engine == OPENAI:
        raise SettingError(
            "--engine openai was given; a server does not say which weights it has, so a calibration could "
            "not tell them from others: calibrate where the model is (--engine local, processes, ray)"
        )
    asking = EngineOptions(engine, workers, threads, address)
    target = target_of(model, out)
    asked, families = read_prompts(prompts, family_field, chat=chat)
    chosen = FAST
    if recipe is not None:
        given = options.read_recipe(recipe)
        chosen = replace(given, length=FAST.length, block=default_block(given))
    chosen = chosen.with_choices(unmask=unmask, block=block or None, cache=cache)
    chosen = replace(chosen, block=None) if block == 0 else chosen
    read_as, guess = parse_part("interpretation", reading), parse_part("estimate", estimate)
    source = ModelSource(model, device, dtype, None, weights)
    with closing(asking.open(source)) as opened, progress("answers") as shown:
        found = learn(
            opened.model_info, asked, families, limit=limit, ends=ends, interpretation=read_as,
            estimate=guess, coverage=coverage, recipe=chosen, max_batch_size=rows, seed=seed,
            engine=Watched(opened, shown.waiting), progress=shown.count,
        )  # fmt: skip
    write(target, found.to_json())
    table = Table("family", "answers", "cut", "middle factor", f"factor for {coverage:.0%}")
    unknown = []
    for name, ratios in found.families.items():
        try:
            factor = f"{ratios.factor(coverage):.3f}"
        except SettingError as too_many_cut:
            factor = "unknown"
            unknown.append(f"{name}: {too_many_cut}")
        table.add_row(name, str(len(ratios)), str(ratios.truncated), f"{ratios.scale:.3f}", factor)
    Console().print(table)
    for reason in unknown:
        typer.echo(f"lastword: {reason}", err=True)
    use = replace(chosen, length=lastword.Calibrated(coverage)).label()
    asked_as = ", asked with --chat" if found.made_with["chat"] else ""
    typer.echo(f"wrote {target}; decode as it was made: {use}{asked_as}")
    if target != user_path(model) / FILE_NAME:
        typer.echo(f"use it with --calibration {shlex.quote(str(target))}")


def target_of(model: str, out: Path | None) -> Path:
    """The file to write, refused before any work if it cannot be, or holds something else already."""
    from lastword.calibration import FILE_NAME, Calibration
    from lastword.io.files import check_target, user_path

    folder = user_path(model)
    target = out or (folder / FILE_NAME if folder.is_dir() else Path(f"{folder.name}.{FILE_NAME}"))
    check_target(target)
    if target.is_file() and target.stat().st_size:
        try:
            Calibration.from_file(target)
        except CheckpointError as foreign:
            raise SettingError(
                f"{target} is there already and is no calibration, so it was left as it is; give another "
                "file with --out"
            ) from foreign
    return target
