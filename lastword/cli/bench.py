"""`lastword bench`: what passes, answers and batches cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli.options import DeviceOption, DtypeOption, path_option
from lastword.errors import SettingError

USUAL_ROWS = 500  # of --models
REPEATS = 3


def bench(
    shape: Annotated[
        Optional[str],
        typer.Option(
            help="llada-8b, dream-7b, tiny, or a checkpoint's folder or config.json, of which only the shape "
            "is read. Default: llada-8b on a GPU, tiny elsewhere."
        ),
    ] = None,
    lines: Annotated[
        Optional[str],
        typer.Option(
            help="passes, blocks, probe, answers, mixed, plain, widths, separated by commas. Default: all, "
            "widths only with --columns."
        ),
    ] = None,
    models: Annotated[
        Optional[str],
        typer.Option(
            help="Time recipes on these models instead, by name, separated by commas: tiny-llada-base."
        ),
    ] = None,
    arms: Annotated[
        str,
        typer.Option(
            help="Recipes for --models: those that go by a name, default, and sampled (a temperature of 0.7)."
        ),
    ] = "fixed,paper,careful,fast,sampled",
    slots: Annotated[
        Optional[int],
        typer.Option(help="Rows decoded at once, for --models; the rest wait. Default: 64."),
    ] = None,
    solo: Annotated[
        int,
        typer.Option(
            help="So many rows of --models are decoded alone as well, to compare (with --dtype float32)."
        ),
    ] = 0,
    rows: Annotated[
        Optional[int],
        typer.Option(help="Of a mixed batch, 16, four times as many waiting; of --models, 500."),
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 900,
    canvas: Annotated[
        str, typer.Option(help="Slots of full passes; the probe reads the most of them.")
    ] = "1024,256",
    horizon: Annotated[int, typer.Option(help="Slots of a whole answer.")] = 278,
    block: Annotated[int, typer.Option(help="Columns of a block.")] = 32,
    pace: Annotated[float, typer.Option(help="Tokens a pass in a whole answer.")] = 3.25,
    columns: Annotated[
        Optional[int],
        typer.Option(help="Full passes up to so many columns, doubling: four, from 1024 or more."),
    ] = None,
    caches: Annotated[
        str,
        typer.Option(help="For blocks, answers and mixed: none, prefix, dual, kept (the prompt)."),
    ] = "none,prefix,dual,kept",
    weights: Annotated[str, typer.Option(help="plain, or fp8.")] = "plain",
    repeats: Annotated[
        Optional[int],
        typer.Option(help="Runs a median is of, fewer where they take seconds. Default: 3, of --models 1."),
    ] = None,
    out: Annotated[Path, path_option("The record to write.")] = Path("out/bench.json"),
    table: Annotated[Optional[Path], path_option("Print this record as Markdown; measure nothing.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Measure passes, answers and batches of any shape with random weights, beside what the device can do.

    Arithmetic does not depend on the values of weights, so the real shapes are timed without the checkpoints:
    full passes, passes within a block under each cache, the probe, whole answers, a mixed batch, and the
    authors' loop written plainly, with the ceilings of the device in the same run. With --models, whole
    recipes on models that have weights.

    Examples:

      lastword bench --shape tiny --lines passes,probe --prompt 90 --canvas 64 --repeats 1

      lastword bench --models tiny-llada-base --arms fast --rows 3 --slots 2 --solo 1 --dtype float32

      lastword bench --shape llada-8b --columns 16384 --out llada-8b.json

      lastword bench --table out/bench.json
    """
    from lastword.bench import record as records
    from lastword.bench.table import table as markdown
    from lastword.cli.tabled import print_markdown

    if table is not None:
        print_markdown(markdown(records.read(table)))
        return

    import time

    import torch

    from lastword.bench.lines import CACHES, LINES, Settings
    from lastword.bench.recipes import ARMS
    from lastword.bench.run import bench_recipes, bench_shape
    from lastword.io.files import check_folder, write
    from lastword.models.device import as_device, as_dtype
    from lastword.validation import MAX_NUMBER, check_int, check_number

    began = time.perf_counter()
    numbers = [("prompt", prompt), ("horizon", horizon), ("block", block), ("columns", columns)]
    few = [("repeats", repeats), ("rows", rows), ("slots", slots)]
    for least, named in ((2, numbers), (1, few), (0, [("solo", solo)])):
        for name, value in named:
            if value is not None:
                check_int("bench", name, value, minimum=least)
    check_number("bench", "pace", pace, above=0, maximum=MAX_NUMBER)
    asked = _named("lines", lines, LINES) if lines else [*LINES]
    if lines is None and columns is None:
        asked.remove("widths")
    check_folder(out.parent)
    _check_ours(out)
    where = as_device(device)

    def show(line: records.Line) -> None:
        spent = f"{line.ms:,.2f} ms a pass" if line.ms is not None else ""
        whole = f", {line.seconds:,.3f} s" if line.seconds is not None else ""
        so_far = f"{time.perf_counter() - began:6.1f} s"
        typer.echo(f"{so_far}  {line.line}: {line.case}: {spent}{whole}", err=True)

    if models:
        if shape is not None or lines is not None or weights != "plain":
            raise SettingError(
                "--models was given with --shape, --lines or --weights; models have weights and a shape of "
                "their own: leave those out"
            )
        rows = rows or USUAL_ROWS
        if solo > rows:
            raise SettingError(f"--solo {solo} was given for {rows} rows; give at most {rows}")
        found = bench_recipes(
            [name.strip() for name in models.split(",")], _named("arms", arms, ARMS), rows, slots,
            device=where, dtype=dtype, repeats=repeats or 1, show=show, solo=solo,
        )  # fmt: skip
    else:
        for name, value in (("slots", slots), ("solo", solo)):
            if value:
                raise SettingError(
                    f"--{name} {value} was given without --models and is for them alone; give "
                    f"--models tiny-llada-base, or leave --{name} out"
                )
        usual = Settings()
        settings = Settings(
            prompt, _numbers("canvas", canvas), horizon, block, pace, rows or usual.rows,
            queue=4 * (rows or usual.rows), columns=columns or usual.columns,
            caches=tuple(_named("caches", caches, CACHES)),
        )  # fmt: skip
        on_gpu = where.type == "cuda"
        found = bench_shape(
            shape or ("llada-8b" if on_gpu else "tiny"), settings, asked, device=where,
            dtype=as_dtype(dtype) or (torch.bfloat16 if on_gpu else torch.float32),
            weights=weights, repeats=repeats or REPEATS, show=show,
        )  # fmt: skip
    write(out, found.to_json())
    print_markdown(markdown(records.read(out)))  # as it is kept, in rounded numbers
    typer.echo(f"\nwrote {out}")


def _named(option: str, given: str, known: object) -> list[str]:
    """Names separated by commas, each of them known."""
    names = [name.strip() for name in given.split(",")]
    listed = list(known)  # type: ignore[call-overload]
    for name in names:
        if name not in listed:
            raise SettingError(
                f"--{option} {given!r} was given; {name!r} is none of {', '.join(listed)}: give some of those"
            )
    return names


def _numbers(option: str, given: str) -> tuple[int, ...]:
    from lastword.validation import check_int

    try:
        numbers = tuple(int(word) for word in given.split(","))
    except ValueError as wrong:
        raise SettingError(f"--{option} {given!r} was given; it takes whole numbers: 1024,256") from wrong
    for number in numbers:
        check_int("bench", option, number, minimum=2)
    return numbers


def _check_ours(out: Path) -> None:
    """Replace a record of ours, and no other file."""
    from lastword.bench.record import read
    from lastword.io.files import check_target

    check_target(out)
    if out.is_file() and out.stat().st_size:
        try:
            read(out)
        except SettingError as foreign:
            raise SettingError(
                f"{out} is there already and is no record of lastword bench, so it was left as it is; give "
                "another file with --out"
            ) from foreign
