"""`lastword batch` and `calibrate`: answer a file of prompts, and compare answer lengths with predictions."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from lastword.cli import options
from lastword.cli.console import progress
from lastword.cli.errors import ALL_FAILED, SOME_FAILED, resumable
from lastword.cli.options import EngineOptions, ModelOptions, RecipeOptions, path_option
from lastword.errors import SettingError

CALIBRATION_OUT = "File to write. Default: the file that other commands load for this model."

FILE_OF_PROMPTS = (
    '.jsonl, .jsonl.gz or .parquet files, folders of them, or quoted patterns, with fields "prompt", "messages" or '
    '"tokens", or OpenAI batch input.'
)
MAX_FAILURES = "Stop after more failed answers than this number, or share of the prompts. Default: after 32 in a row."
IN_ORDER = "Sort the answers by prompt at the end, or keep the order in which they finished."


def batch(
    prompts: Annotated[list[Path], Argument(parser=options.as_path, metavar="PROMPTS...", help=FILE_OF_PROMPTS)],
    model_options: ModelOptions,
    recipe_options: RecipeOptions,
    engine_options: EngineOptions,
    out: Annotated[
        Path, path_option("File of answers to write, .jsonl or .parquet. The same command resumes a stopped run.")
    ],
    name: Annotated[str | None, Option(help=options.NAMES)] = None,
    max_new_tokens: options.MaxNewTokens = None,
    stop: options.Stop = None,
    batch_size: options.BatchSize = 8,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    chat: options.Chat = None,
    in_order: Annotated[bool, Option("--in-order/--as-they-come", help=IN_ORDER)] = True,
    times: Annotated[bool, Option("--times", help="Write the seconds of each answer; equal runs then differ.")] = False,
    max_failures: Annotated[str | None, Option(metavar="N|N%", help=MAX_FAILURES)] = None,
    plain: Annotated[bool, Option("--plain", help="Write plain lines also for input in OpenAI's format.")] = False,
    calibration: options.CalibrationFile = "auto",
    import_modules: options.Imports = None,
) -> int:
    """Answer a file of prompts.

    A line may replace max_new_tokens, temperature, top_p, top_k, stop, seed, recipe and length. Each answer is written
    as soon as it is finished. If a line is invalid or its answer fails, the reason is written instead. The same command
    resumes a run that was stopped or killed.

    Examples:

        lastword batch prompts.jsonl --out answers.jsonl
        lastword batch prompts.parquet --out out.parquet --recipe fast --engine ray
        lastword batch requests.jsonl --out replies.jsonl --name my-model
    """
    from lastword.batch import Batch, BatchProgress

    prepared = Batch(
        prompts,
        out,
        name=name or model_options.name,
        recipe=recipe_options.build(),
        seed=seed,
        limit=limit,
        max_new_tokens=max_new_tokens,
        stop=stop or (),
        max_batch_size=batch_size,
        chat=chat,
        in_order=in_order,
        plain=plain,
        max_failures=max_failures,
        times=times,
    )
    source = model_options.source(calibration)
    with (
        resumable(),
        prepared.writing(),
        closing(engine_options.open(source, model_options.threads)) as engine,
        progress("prompts") as display,
    ):

        def show(state: BatchProgress) -> None:
            note = f"{state.failed} failed" if state.failed else ""
            display.update(state.done, state.total, seconds_left=state.seconds_left, note=note)

        outcome = prepared.run(engine, show)
    typer.echo(str(outcome))
    return (SOME_FAILED if outcome.answered else ALL_FAILED) if outcome.failed else 0


def calibrate(
    prompts: Annotated[Path, path_option('Text with one prompt per line, or .jsonl or .parquet with fields "prompt".')],
    model_options: ModelOptions,
    recipe_options: RecipeOptions,
    engine_options: EngineOptions,
    family_field: Annotated[str | None, Option(help="Field of --prompts that names the task family.")] = None,
    coverage: Annotated[
        float, Option(help="Share of the answers that fit into the planned canvas, for the printed factor.")
    ] = 0.9,
    slots: options.Slots = None,
    limit: options.Limit = None,
    interpretation: options.InterpretationName = "auto",
    estimate: Annotated[
        str, Option(help="Estimate of the length that is scaled: mean, quantile:0.9 or cheapest:300.")
    ] = "mean",
    ends: options.Ends = "document",
    batch_size: options.BatchSize = 8,
    seed: options.Seed = 0,
    chat: options.Chat = None,
    out: Annotated[Path | None, path_option(CALIBRATION_OUT)] = None,
    import_modules: options.Imports = None,
) -> None:
    """Compare the lengths of a model's answers with their predictions, and save the ratios.

    No labels are needed. Each prompt is answered on a canvas of --slots masks. Afterwards, --length calibrated:0.9
    plans a canvas that is long enough for 90% of the answers that are decoded with the same recipe. A command that uses
    the calibration is printed at the end.

    Examples:

        lastword calibrate --prompts prompts.txt
        lastword generate "Problem: Solve for n: 4n + 3 = 35." \\
          --length calibrated:0.9
        lastword calibrate --model my/checkpoint --prompts prompts.jsonl \\
          --family-field task --recipe fast --slots 512
    """
    from lastword.calibration import FILE_NAME, Calibration, fit, saved_path
    from lastword.io.files import check_folder, user_path, write
    from lastword.io.prompts import read_prompts
    from lastword.prompts import with_chat_template
    from lastword.recipe.text import parse_part

    if engine_options.engine == "openai":
        raise SettingError(
            "--engine openai was given; a server does not report its weights, which a calibration needs: "
            "calibrate where the model is (--engine local, processes, ray)"
        )
    if recipe_options.length is not None:
        raise SettingError("--length was given; answers are calibrated on a fixed canvas: set its size with --slots")
    folder = user_path(model_options.name)
    target = out or (folder / FILE_NAME if folder.is_dir() else None)
    if target is not None:
        options.check_replaceable(target, "a calibration", Calibration.from_file)
    texts, families = read_prompts(prompts, family_field, limit=limit)
    recipe = recipe_options.build()
    with (
        closing(engine_options.open(model_options.source(), model_options.threads)) as engine,
        progress("answers") as display,
    ):
        model: Any = engine.model_info
        calibration = fit.calibrate(
            model,
            [with_chat_template(model, text, chat) for text in texts],
            families,
            limit=slots,
            ends=ends,
            interpretation=parse_part("interpretation", interpretation),
            estimate=parse_part("estimate", estimate),
            coverage=coverage,
            recipe=recipe,
            max_batch_size=batch_size,
            seed=seed,
            engine=engine,
            progress=display.update,
        )
    if target is None:
        target = saved_path(calibration.model_key)
        check_folder(target.parent)
    write(target, calibration.to_json())
    table = Table("family", "answers", "truncated", "median factor", f"factor for {coverage:.0%}")
    warnings = dict[str, str]()
    for family, ratios in calibration.families.items():
        try:
            factor = f"{ratios.factor(coverage):.3f}"
        except SettingError as error:  # too many truncated answers
            factor = "unknown"
            warnings[family] = f"lastword: {family}: {error}"
        table.add_row(family, str(len(ratios)), str(ratios.truncated), f"{ratios.scale:.3f}", factor)
    Console().print(table)
    for warning in warnings.values():
        typer.echo(warning, err=True)
    typer.echo(f"wrote {target}")
    if "all" in warnings:  # the command would be refused
        return
    given = options.given_options(model_options, recipe_options)
    if out is not None and out != folder / FILE_NAME:
        given += ["--calibration", str(out)]
    if chat is not None:
        given.append("--chat" if chat else "--no-chat")
    first = texts[0]
    is_line = isinstance(first, str) and "\n" not in first
    command = ["generate", first] if is_line else ["batch", str(prompts), "--out", "answers.jsonl"]
    typer.echo(f"next: {shlex.join(['lastword', *command, '--length', f'calibrated:{coverage:g}', *given])}")
