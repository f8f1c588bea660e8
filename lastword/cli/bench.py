"""`lastword bench`: seconds of recipes on models with weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Optional

import typer

from lastword.cli import options
from lastword.cli.options import path_option
from lastword.errors import SettingError


def bench(
    models: Annotated[
        str,
        typer.Option(help="Names of embedded models or checkpoint folders, separated by commas."),
    ] = options.DEFAULT_MODEL,
    recipes: Annotated[
        str,
        typer.Option(
            help="Names of recipes, separated by commas; also default, and sampled (a temperature of 0.7)."
        ),
    ] = "fixed,paper,careful,fast,sampled",
    rows: Annotated[int, typer.Option(help="Number of prompts.")] = 500,
    max_batch_size: Annotated[
        Optional[int],
        typer.Option(
            help="Rows decoded at the same time; the other prompts wait. Default: by model, up to 64."
        ),
    ] = None,
    solo: Annotated[
        int,
        typer.Option(help="Decode so many rows alone as well, and compare the answers (--dtype float32)."),
    ] = 0,
    repeats: Annotated[
        int, typer.Option(help="Timed runs, of which the median is shown; fewer where they take seconds.")
    ] = 1,
    out: Annotated[Path, path_option("The record to write.")] = Path("out/bench.json"),
    table: Annotated[Optional[Path], path_option("Print this record as Markdown; measure nothing.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Time the decode loop of models, recipe by recipe, on the same validation prompts.

    Every recipe decodes the prompts twice to warm up, then again to be timed. The result is printed as a
    table and written as a record. To measure forward passes of any model shape without its weights, run
    python -m benchmarks.passes in the repository.

    Examples:

      lastword bench --models tiny-llada-base --recipes fast --rows 3 --solo 1 --dtype float32

      lastword bench --models tiny-llada-base,tiny-dream-base --max-batch-size 64 --out out/both.json

      lastword bench --table out/bench.json
    """
    from lastword.bench import BenchRecord, read_record, to_markdown
    from lastword.cli.console import print_markdown

    if table is not None:
        print_markdown(to_markdown(read_record(table, BenchRecord)))
        return

    from lastword.bench import BENCH_RECIPES, BenchLine
    from lastword.bench import bench as run_bench
    from lastword.io.files import check_folder, write
    from lastword.models.load import as_device
    from lastword.validation import check_int

    for name, value in (("rows", rows), ("repeats", repeats), ("max_batch_size", max_batch_size)):
        if value is not None:
            check_int("bench", name, value, minimum=1)
    check_int("bench", "solo", solo, minimum=0)
    if solo > rows:
        raise SettingError(f"--solo {solo} was given for {rows} rows; give at most {rows}")
    names = _check_names(recipes, BENCH_RECIPES)
    check_folder(out.parent)
    _check_out(out)

    def show(line: BenchLine) -> None:
        typer.echo(f"{line.case}: {line.seconds:,.3f} s, {line.ms:,.2f} ms per forward pass", err=True)

    record = run_bench(
        [name.strip() for name in models.split(",")],
        names,
        rows,
        max_batch_size=max_batch_size,
        device=as_device(device),
        dtype=dtype,
        repeats=repeats,
        solo=solo,
        on_line=show,
    )
    write(out, record.to_json())
    print_markdown(to_markdown(read_record(out, BenchRecord)))  # in rounded numbers, as the file has them
    typer.echo(f"\nwrote {out}")


def _check_names(text: str, known: Collection[str]) -> list[str]:
    """Return the recipe names in `text`, separated by commas; raise SettingError for an unknown one."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise SettingError(f"--recipes {text!r}: {name!r} is unknown; give some of {', '.join(known)}")
    return names


def _check_out(out: Path) -> None:
    """Raise SettingError if `out` is a file that is not a record of this command."""
    from lastword.bench import BenchRecord, read_record
    from lastword.io.files import check_target

    check_target(out)
    if out.is_file() and out.stat().st_size:
        try:
            read_record(out, BenchRecord)
        except SettingError as error:
            raise SettingError(
                f"{out} exists and is not a record of lastword bench, so it was not replaced; give "
                "another file with --out"
            ) from error
