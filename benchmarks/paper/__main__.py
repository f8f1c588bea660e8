"""Print the survival paper's tables from records, with its published values.

    python -m benchmarks.paper --records out/paper-8b                     print the tables
    python -m benchmarks.paper --records out/paper-8b --out out/tables    also write Markdown, CSV and figures

The arms are identified by their recipes: the longest fixed canvas is the baseline, and `survival` with the same
other parts is the paper's prediction. Equal records give equal bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.paper.figures import save_figures
from benchmarks.paper.tables import arms_of, paper_tables
from lastword.errors import LastwordError, SettingError
from lastword.evaluate.journal import read_records
from lastword.io.files import check_folder, write


def main() -> None:
    """Parse the arguments; print and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", nargs="+", type=Path, required=True, help="files or folders of records")
    parser.add_argument("--timed", nargs="+", type=Path, help="records with the seconds; default: those of --records")
    parser.add_argument("--out", type=Path, help="folder for Markdown, CSV and figures")
    parser.add_argument("--no-figures", action="store_true")
    options = parser.parse_args()
    try:
        run(options.records, options.timed, options.out, figures=not options.no_figures)
    except LastwordError as error:
        parser.exit(1, f"{error}\n")


def run(paths: list[Path], timed_paths: list[Path] | None, out: Path | None, *, figures: bool) -> None:
    """Print the tables of records, and write them to a folder if one is given."""
    records = [record for path in paths for record in read_records(path)]
    timed = [record for path in timed_paths for record in read_records(path)] if timed_paths else None
    tables = paper_tables(records, timed)
    if not tables:
        raise SettingError(
            f"{len(records)} records contain nothing to compare; measure a fixed canvas and a prediction: "
            "lastword eval --length fixed:256, then --length survival:256"
        )
    text = "\n\n".join(table.markdown() for table in tables)
    print(text)
    if out is None:
        return
    check_folder(out)
    write(out / "tables.md", (text + "\n").encode())
    for table in tables:
        write(out / f"{table.name.lower().replace(' ', '-')}.csv", table.csv().encode())
    if figures and any(arms.fixed for arms in arms_of(records)):
        save_figures(records, out)


if __name__ == "__main__":
    main()
