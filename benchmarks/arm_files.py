"""Kept records: a Parquet file per model with the columns that tables need.

Texts, prompt digests, probe summaries and the seconds of single rows are left out; so are the lengths of
answers, except on fixed canvases, which other arms are compared with. Instead of the tokens that were
computed, a file has those that caches and blocks skipped, which are mostly 0 (`cost_tokens_skipped`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

from lastword.errors import SettingError
from lastword.evaluate.journal import read_records
from lastword.evaluate.parquet import FOLDER_SUFFIX, to_columns, to_row
from lastword.evaluate.records import Answer, Fields, Record
from lastword.io.files import check_folder, write
from lastword.io.prompts import import_pyarrow
from lastword.policies.cache import NoCache
from lastword.policies.commit import Never
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe

ArmKey = tuple[str, str, Recipe]  # kind, split, recipe
Arms = dict[ArmKey, list[Record]]
DROPPED = (
    "prompt", "text", "seconds", "expected_length", "tail",
    "cost_attention_pairs", "probe_cost_attention_pairs",
)  # fmt: skip


def file_of(folder: Path, model: str) -> Path:
    """Return the file with the arms of a model."""
    return folder / f"{model}{FOLDER_SUFFIX}"


def read_arms(folder: Path, model: str) -> Arms:
    """Return the arms of a model; empty if the folder has no file of the model."""
    path = file_of(folder, model)
    return by_arm(read_records(path)) if path.exists() else {}


def by_arm(records: Iterable[Record]) -> Arms:
    """Group records by kind, split and recipe."""
    arms: Arms = {}
    for record in records:
        arms.setdefault((record.kind, record.split, record.recipe), []).append(record)
    return arms


def keep(records: Iterable[Record], folder: Path) -> list[ArmKey]:
    """Add arms to the files of their models, or replace them, and return those that were written.

    An arm that has fewer samples than the kept one, or the same records, is not written. An arm that lacks
    samples of the kept one is rejected, because it belongs to other prompts.
    """
    written: list[ArmKey] = []
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.model, []).append(record)
    for model, model_records in models.items():
        kept = read_arms(folder, model)
        changed = {}
        for key, arm in by_arm(model_records).items():
            old = kept.get(key, [])
            if len(arm) >= len(old) and _sorted_rows(arm) != _sorted_rows(old):
                _check_same_samples(old, arm, file_of(folder, model))
                changed[key] = arm
        if changed:
            _write([record for arm in (kept | changed).values() for record in arm], file_of(folder, model))
        written += changed
    return written


def _check_same_samples(old: Sequence[Record], new: Sequence[Record], path: Path) -> None:
    names = ("weights", "dtype", "seed", "layout", "task", "task_version", "index")
    samples = [{tuple(getattr(record, name) for name in names) for record in arm} for arm in (old, new)]
    lost = samples[0] - samples[1]
    if lost or len(samples[1]) < len(new):
        reason = f"lacks {len(lost)} of the kept samples" if lost else "has a sample twice"
        raise SettingError(f"{path} was not changed: the new arm {new[0].recipe.label()} {reason}")


def _sorted_rows(records: Iterable[Record]) -> list[Fields]:
    """Return what is kept of records, in the order of the file."""
    rows = [_compact(record) for record in records]
    return sorted(rows, key=lambda row: [row[name] for name in ("kind", "split", "task", "recipe", "index")])


def _compact(record: Record) -> Fields:
    row = to_row(record)
    if isinstance(record, Answer):
        if record.cost is None or record.probe_cost is None:
            raise SettingError(
                f"{record.task} {record.index} was answered by a server that does not report the costs of "
                "probe and decoding; only arms with known costs are kept"
            )
        width = record.prompt_tokens + record.horizon
        row["cost_tokens_skipped"] = record.cost.forward_passes * width - row.pop("cost_tokens_computed")
        row["score"] = round(record.score, 4)
        if not _is_fixed_canvas(record.recipe):
            row["length"] = None
    return {name: value for name, value in row.items() if name not in DROPPED and value is not None}


def _is_fixed_canvas(recipe: Recipe) -> bool:
    return isinstance(recipe.length, Fixed) and (recipe.commit, recipe.cache) == (Never(), NoCache())


def _write(records: Iterable[Record], path: Path) -> None:
    """Write records in few bytes: integers byte by byte, expected lengths with four decimals."""
    pyarrow = import_pyarrow()
    columns: dict[str, Any] = {}
    split_bytes = []
    for name, values in to_columns(_sorted_rows(records)).items():
        columns[name] = pyarrow.array(values)
        if name.startswith("expected_"):
            decimals = [None if value is None else Decimal(f"{value:.4f}") for value in values]
            columns[name] = pyarrow.array(decimals, pyarrow.decimal128(9, 4))
            split_bytes.append(name)
        elif pyarrow.types.is_integer(columns[name].type):
            columns[name] = columns[name].cast(pyarrow.int32())
            split_bytes.append(name)
    content = BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table(columns), content,
        compression="zstd", compression_level=22, row_group_size=len(columns["kind"]), data_page_size=2**24,
        use_dictionary=[name for name in columns if name not in split_bytes],
        column_encoding=dict.fromkeys(split_bytes, "BYTE_STREAM_SPLIT"),
        store_decimal_as_integer=True, store_schema=False, write_statistics=False,
    )  # fmt: skip
    check_folder(path.parent)
    write(path, content.getvalue())
