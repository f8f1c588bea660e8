"""Records as Parquet files: one row per record, nested fields as columns such as `cost_tokens_computed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from decimal import Decimal
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from lastword.errors import LastwordError, SettingError
from lastword.evaluate.records import Answer, Drift, Fields, Record, RecordedCost, make_record
from lastword.io.files import check_folder, check_target, write
from lastword.io.prompts import import_pyarrow
from lastword.recipe.recipe import Recipe

SUFFIX = ".parquet"
FOLDER_SUFFIX = ".records.parquet"  # of the Parquet files that are read if a folder is given
FIELDS = {field.name for kind in (Answer, Drift) for field in fields(kind)}
NESTED = ("probe_cost", "cost", "versions", "sandbox", "expected")
NULLABLE = {"cost": None, "probe_cost": None}  # required fields that may be None
MAX_BYTES = 2**31  # of uncompressed columns in a file that is read
_to_json = cache(Recipe.to_json)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Write a Parquet file with a row per record, for `read_parquet` and for DuckDB, pandas or polars."""
    if path.suffix != SUFFIX:
        raise SettingError(f"{path} does not end in {SUFFIX}; give a file name that does")
    pyarrow = import_pyarrow()
    check_folder(path.parent)
    check_target(path)
    content = BytesIO()
    try:
        table = pyarrow.table(to_columns([to_row(record) for record in records]))
        pyarrow.parquet.write_table(table, content, compression="zstd")
    except pyarrow.ArrowException as error:
        raise SettingError(
            f"{path} cannot be written, because a field has text in one record and a number in another "
            f"({error}); export these records to separate files"
        ) from error
    write(path, content.getvalue())


def to_row(record: Record) -> Fields:
    """Return the values of a record by column name. The recipe becomes JSON text."""
    row: Fields = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, RecordedCost):
            value = asdict(value)
        if isinstance(value, dict):
            row |= {f"{field.name}_{key}": entry for key, entry in value.items()}
        else:
            row[field.name] = _to_json(value) if isinstance(value, Recipe) else value
    return row


def to_columns(rows: Sequence[Fields]) -> dict[str, list[Any]]:
    """Transpose rows; a value that is missing in a row is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def read_parquet(content: bytes) -> list[Record]:
    """Return the records, given the content of a file of `write_parquet`; raise ValueError if it is invalid."""
    pyarrow = import_pyarrow()
    try:
        file = pyarrow.parquet.ParquetFile(BytesIO(content))
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes of columns")
        table = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"not a Parquet file, or damaged: {error}") from error
    places, parse = [_field_of(name) for name in table.column_names], cache(Recipe.from_json)
    records = []
    for number, values in enumerate(zip(*(column.to_pylist() for column in table.columns)), 1):
        try:
            row = _nest(places, values)
            row["recipe"] = parse(row["recipe"]) if isinstance(row.get("recipe"), str) else None
            records.append(make_record(row if row.get("kind") == "drift" else NULLABLE | row))
        except (LastwordError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"row {number}: {error}") from error
    return records


def _nest(places: Sequence[tuple[str, str | None]], values: Sequence[Any]) -> Fields:
    """Return the fields of a record, None left out, given a row's values and the `_field_of` of each column."""
    row: Fields = {}
    for (field, key), value in zip(places, values):
        if value is not None:
            target = row if key is None else row.setdefault(field, {})
            target[key or field] = float(value) if isinstance(value, Decimal) else value
    if "tokens_skipped" in (cost := row.get("cost", {})):
        width = row["prompt_tokens"] + row["horizon"]
        cost["tokens_computed"] = cost["forward_passes"] * width - cost.pop("tokens_skipped")
    return row


def _field_of(column: str) -> tuple[str, str | None]:
    """Return the field that a column belongs to and, if the field is nested, the key in it."""
    for field in NESTED:
        if column.startswith(f"{field}_") and column not in FIELDS:
            return field, column.removeprefix(f"{field}_")
    return column, None
