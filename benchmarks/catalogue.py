"""Tables of the contents of the repository: the folders of records, and the embedded models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import MODELS
from benchmarks.float8 import FLOAT8
from benchmarks.json_lines import read_lines
from benchmarks.kept import accuracy, prompts_per_family
from benchmarks.study import RECORDS
from lastword.embedded import FOLDER
from lastword.io.prompts import import_pyarrow
from lastword.tasks import BENCHMARKS
from training.history import HARDWARE, LOGS, history, log_path, read_log, shipped_log
from training.settings import read as read_settings

ROOT = Path(__file__).parent.parent
Head = dict[str, Any]
Summarise = Callable[[Path], tuple[Head, int]]  # returns what a file says about its run, and its number of entries


@dataclass(frozen=True)
class RecordFolder:
    """A folder of records or a single file; `hardware` is needed if the files do not contain it."""

    path: str
    page: str  # Markdown
    summarise: Summarise
    unit: str
    hardware: str = ""


def _arms(path: Path) -> tuple[Head, int]:
    """Summarise a Parquet file of arms, which has a row per answer."""
    parquet = import_pyarrow().parquet
    table = parquet.read_table(path, columns=["hardware", "dtype"])
    return {name: "; ".join(table[name].unique().to_pylist()) for name in table.column_names}, len(table)


def _lines(path: Path) -> tuple[Head, int]:
    """Summarise JSON lines whose first line describes them; a JSON file in the same folder contains no records."""
    if path.suffix == ".json":
        return {}, 0
    head, records = read_lines(path)
    return head, len(records)


def _candidates(path: Path) -> tuple[Head, int]:
    """Summarise JSON lines with an arm per line, which contains all its answers."""
    head, arms = read_lines(path)
    return head, sum(len(arm["correct" if "correct" in arm else "right"]) for arm in arms)


def _coverage(path: Path) -> tuple[Head, int]:
    """Summarise a file with a summary per model."""
    models = json.loads(path.read_text(encoding="utf-8")).values()
    (hardware,) = {(model["hardware"], model["dtype"]) for model in models}
    return dict(zip(("hardware", "dtype"), hardware)), sum(sum(model["prompts"].values()) for model in models)


def _run(path: Path) -> tuple[Head, int]:
    """Summarise a JSON object with lines."""
    head = json.loads(path.read_text(encoding="utf-8"))
    return head, len(head["lines"])


def _paired(path: Path) -> tuple[Head, int]:
    """Summarise a record with a character per prompt and model."""
    return {}, sum(len(model.same) for model in FLOAT8.read(path).models)


def _runs(path: Path) -> tuple[Head, int]:
    """Summarise a JSON object with measurements."""
    head = json.loads(path.read_text(encoding="utf-8"))
    return head, len(head["measured"])


def _whole(path: Path) -> tuple[Head, int]:
    """Summarise a file that counts as one entry."""
    return {}, 1


FOLDERS = (
    RecordFolder(
        "study",
        "[accuracy and work](accuracy-and-work.md), [default](default.md), [paper's tables](paper-tables.md)",
        _arms,
        "answers",
    ),
    RecordFolder("parts", "[parts](parts.md)", _arms, "answers"),
    RecordFolder("speed", "[seconds](seconds.md), one prompt at a time on a CPU", _arms, "answers"),
    RecordFolder("gpu-speed", "[seconds](seconds.md), one prompt at a time on a GPU", _arms, "answers"),
    RecordFolder("batch-speed", "[seconds](seconds.md), in batches on a GPU", _arms, "answers"),
    RecordFolder("cpu-batches.json", "[seconds](seconds.md), in batches on a CPU", _run, "runs"),
    RecordFolder("fast", "[fast recipe](fast-recipe.md)", _candidates, "answers"),
    RecordFolder("coverage.json", "[coverage](coverage.md)", _coverage, "prompts"),
    RecordFolder("interpretations", "[interpretations](interpretations.md)", _lines, "prompts", "CPU"),
    RecordFolder("partial-answers", "[partial answers](partial-answers.md)", _lines, "prompts", "CPU"),
    RecordFolder("float8.json", "[fp8](float8.md)", _paired, "prompts", "CPU"),
    RecordFolder("probe-cache.json", "[probe cache](probe-cache.md)", _paired, "prompts", "CPU"),
    RecordFolder("bench", "[forward passes](passes.md), [seconds](seconds.md)", _run, "lines"),
    RecordFolder("cpu-passes.json", "[forward passes](passes.md#on-a-cpu)", _run, "arms"),
    RecordFolder("serving", "[server](serving.md)", _run, "arms"),
    RecordFolder("hostile.json", "[server](serving.md#hostile-clients)", _run, "kinds of clients"),
    RecordFolder("scaling", "[workers](scaling.md)", _runs, "runs"),
    RecordFolder("pool-capacity.json", "[workers](scaling.md), simulated", _run, "runs", "CPU"),
    RecordFolder("batch-memory.json", "[workers](scaling.md#many-lines)", _run, "runs"),
    RecordFolder("ray-streams.json", "[decision 25](../decisions/0025-replicas-on-ray.md)", _run, "runs"),
    RecordFolder("ray-data.json", "[decision 31](../decisions/0031-ray-data.md)", _run, "runs"),
    RecordFolder("scale.json", "[a thousand replicas](scale.md), simulated", _run, "arms", "CPU"),
    RecordFolder("training", "[training logs](embedded-models.md#training)", _whole, "", HARDWARE),
)


def files_of(folder: RecordFolder) -> list[Path]:
    """Return the files of a folder of records, by name."""
    paths = sorted(RECORDS.parent.glob(folder.path))
    inner = [path for parent in paths if parent.is_dir() for path in sorted(parent.rglob("*.*"))]
    return [path for path in inner or paths if path.is_file()]


def records() -> str:
    """Return a table of all folders of records: page, hardware and size."""
    rows = ["| folder | page | hardware | size |", "|---|---|---|---:|"]
    for folder in FOLDERS:
        files = files_of(folder)
        summaries = [folder.summarise(path) for path in files]
        heads = [head for head, _ in summaries if "hardware" in head]
        hardware = dict.fromkeys(", ".join(filter(None, (head["hardware"], head.get("dtype")))) for head in heads)
        entries = f"{sum(count for _, count in summaries):,} {folder.unit}" if folder.unit else f"{len(files)} files"
        rows.append(f"| `{folder.path}` | {folder.page} | {'; '.join(hardware) or folder.hardware} | {entries} |")
    return "\n".join(rows)


def parameters(weights: Path) -> int:
    """Return the number of values in a safetensors file, read from its header."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def models() -> str:
    """Return a table of the embedded models: format, training, size and accuracy."""
    rows = [
        "| model | format | training rows | from | steps | seconds | parameters | accuracy |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for name in MODELS:
        settings = read_settings(ROOT / "training" / f"{name}.toml")
        training = history(shipped_log(name))
        shares = accuracy(name)
        resumed = "".join(f", resumed at {step:,}" for step in training.resumed)
        cells = (
            name,
            {"llada": "LLaDA", "dream": "Dream"}[settings.family],
            {"packed": "packed documents", "padded": "padded answers"}[settings.rows_are],
            Path(settings.start).name or "random weights",
            f"{training.steps:,}{resumed}",
            f"{training.seconds:,.0f}",
            f"{parameters(FOLDER / name / 'model.safetensors'):,}",
            f"{sum(shares.values()) / len(shares):.3f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *rows,
            "",
            f"Trained on one {HARDWARE}, possibly shared with other runs. Accuracy: fixed canvas of 256 slots, one "
            f"token per forward pass, {prompts_per_family(MODELS[0]) * len(BENCHMARKS):,} test prompts.",
        ]
    )


def training_runs() -> str:
    """Return a table of validation accuracy during training by run and step, and for two mixtures of training rows."""
    scored = [(log_path(name), name) for name in MODELS]
    scored.append((LOGS / "llada-instruct-seed-2.log.jsonl.xz", "tiny-llada-instruct, seed 2"))
    runs = [
        (run, line["step"], line["accuracy"]) for path, run in scored for line in read_log(path) if "accuracy" in line
    ]
    for line in (LOGS / "checks.jsonl").read_text().splitlines():
        check = json.loads(line)
        if check["run"] in ("ahead", "plain"):  # the others are of an earlier version of the tasks
            runs.append((f"trial, {check['run']}", check["steps"], check))
    rows = ["| run | steps | mean accuracy | lowest family |", "|---|---:|---:|---|"]
    for run, steps, shares in runs:
        lowest = min(BENCHMARKS, key=lambda family: shares[family])
        rows.append(f"| {run} | {steps:,} | {shares['mean']:.3f} | {lowest} {shares[lowest]:.2f} |")
    return "\n".join(
        [*rows, "", "60 validation prompts per family, fixed canvas of 256 slots, one token per forward pass."]
    )
