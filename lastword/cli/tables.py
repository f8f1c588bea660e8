"""`lastword tables`: the paper's tables and figures from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from lastword.cli.options import path_option

if TYPE_CHECKING:
    from lastword.cli.progress import Showing
    from lastword.evaluate.records import Record

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
    from lastword.cli.progress import progress
    from lastword.cli.tabled import print_markdown
    from lastword.errors import SettingError
    from lastword.io.files import check_folder, check_target, write
    from lastword.paper.arms import arms_of
    from lastword.paper.export import export
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
        export(found, parquet)
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
