"""Parquet: rows of a file one by one, and a file of rows; pyarrow is imported here alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from lastword.errors import ExtraError, install_command
from lastword.io.files import replacing

ROWS = 1024  # held at once


def check_installed() -> None:
    """Refuse Parquet where nothing here can read it."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as missing:
        raise ExtraError(
            f"Parquet needs pyarrow, which is not installed: give .jsonl files, or {install_command('eval')}"
        ) from missing


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; a field that is null is as one left out. ValueError: it is no Parquet."""
    check_installed()
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            for row in batch.to_pylist():
                yield _present(row)


def write(path: Path, found: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Write rows piece by piece, whole or not at all; `columns` are names and the types of what they hold."""
    check_installed()
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in columns.items()])
    left = iter(found)
    with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while some := [dict(row) for row in islice(left, ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))


def _present(value: Any) -> Any:
    """Without what is null: a column that one row has all rows have."""
    if isinstance(value, dict):
        return {name: _present(own) for name, own in value.items() if own is not None}
    return [_present(own) for own in value] if isinstance(value, list) else value
