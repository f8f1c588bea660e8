"""Records as one flat table in a file that other tools query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from io import BytesIO
from pathlib import Path

from lastword.errors import ExtraError, SettingError, install_command
from lastword.evaluate.records import Fields, Record, Spent
from lastword.io.files import check_folder, check_target, write
from lastword.paper.pairing import by_recipe


def export(records: Sequence[Record], path: Path) -> None:
    """Write Parquet, which DuckDB, pandas and polars read: a row a record, a column a number.

    Nested fields become columns such as `cost_tokens_computed`; the recipe stays JSON text.
    Records of one recipe
    stand together.
    """
    if path.suffix != ".parquet":
        raise SettingError(f"{path} was given; records are exported as Parquet: end it in .parquet")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise ExtraError(
            f"Parquet needs pyarrow, which is not installed: {install_command('eval')}"
        ) from missing
    check_folder(path.parent)
    check_target(path)
    rows = [
        dict(_flat(_fields(record) | {"recipe": recipe.to_json()}))
        for recipe, mine in by_recipe(records).items()
        for record in mine
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    content = BytesIO()
    try:
        columns = {name: [row.get(name) for row in rows] for name in names}
        pyarrow.parquet.write_table(pyarrow.Table.from_pydict(columns), content)
    except pyarrow.ArrowException as mixed:
        raise SettingError(
            f"{path} cannot be written: some field has text in one record and a number in another ({mixed}); "
            "export them to files of their own"
        ) from mixed
    write(path, content.getvalue())


def _fields(record: Record) -> Fields:
    named = {field.name: getattr(record, field.name) for field in fields(record)}
    works = {name: asdict(work) for name, work in named.items() if isinstance(work, Spent)}
    return named | works


def _flat(given: Fields, before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}_")
        else:
            yield before + name, value
