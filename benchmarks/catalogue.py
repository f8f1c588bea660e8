"""Tables of the repository's contents: records by folder, and the embedded models by their cards."""

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
from benchmarks.kept import accuracy, asked
from benchmarks.study import RECORDS
from lastword.embedded import FOLDER
from lastword.evaluate.parquet import load_pyarrow
from lastword.tasks import BENCHMARKS
from training.history import HARDWARE, LOGS, history, log_path, read_log, shipped_log
from training.settings import read as read_settings

ROOT = Path(__file__).parent.parent
About = dict[str, Any]
Counted = Callable[[Path], tuple[About, int]]  # what a file says of itself, and how many it holds


@dataclass(frozen=True)
class Kept:
    """A folder of records; `hardware` where its files do not say."""

    path: str
    what: str
    command: str
    counted: Counted
    unit: str
    hardware: str = ""


def _arms(path: Path) -> tuple[About, int]:
    """Parquet files of arms: a row per answer."""
    _, parquet = load_pyarrow()
    table = parquet.read_table(path, columns=["hardware", "dtype"])
    return {name: "; ".join(table[name].unique().to_pylist()) for name in table.column_names}, len(table)


def _lines(path: Path) -> tuple[About, int]:
    """JSON lines after a first line that describes them. A plain file in the same folder holds no records."""
    if path.suffix == ".json":
        return {}, 0
    head, records = read_lines(path)
    return head, len(records)


def _candidates(path: Path) -> tuple[About, int]:
    """JSON lines: an arm per line with all its answers."""
    head, arms = read_lines(path)
    return head, sum(len(arm["right"]) for arm in arms)


def _coverage(path: Path) -> tuple[About, int]:
    """Summarise a file with a summary per model."""
    models = json.loads(path.read_text(encoding="utf-8")).values()
    (hardware,) = {(model["hardware"], model["dtype"]) for model in models}
    return dict(zip(("hardware", "dtype"), hardware)), sum(sum(model["prompts"].values()) for model in models)


def _run(path: Path) -> tuple[About, int]:
    """Summarise a JSON object with lines."""
    about = json.loads(path.read_text(encoding="utf-8"))
    return about, len(about["lines"])


def _paired(path: Path) -> tuple[About, int]:
    """Summarise a record with a character per prompt and model."""
    return {}, sum(len(model.same) for model in FLOAT8.read(path).models)


def _runs(path: Path) -> tuple[About, int]:
    """Summarise a JSON object with measurements."""
    about = json.loads(path.read_text(encoding="utf-8"))
    return about, len(about["measured"])


def _whole(path: Path) -> tuple[About, int]:
    """A file that counts as one."""
    return {}, 1


STUDY = "python -m benchmarks.study"
KEPT = (
    Kept(
        "study",
        "answers of every arm: [accuracy and work](accuracy-and-work.md), [the default](default.md), "
        "[the paper's tables](paper-tables.md)",
        f"`{STUDY} run --arms paper beyond lengths choose confirm peers --workers 8`, then `{STUDY} keep`",
        _arms,
        "answers",
    ),
    Kept(
        "parts", "answers of [every part](parts.md), timed", f"`{STUDY} run --arms parts --workers 1`", _arms, "answers"
    ),
    Kept(
        "speed",
        "answers a prompt at a time, [timed](seconds.md)",
        f"`{STUDY} run --arms speed --per-family 3 --rows 1 --device cpu`",
        _arms,
        "answers",
    ),
    Kept(
        "batch-speed",
        "answers in batches of 500, [timed](seconds.md)",
        f"`{STUDY} run --arms speed --rows 500`",
        _arms,
        "answers",
    ),
    Kept(
        "fast",
        "answers of the candidates for [a fast recipe](fast-recipe.md)",
        "`python -m benchmarks.fast run --workers 12`",
        _candidates,
        "answers",
    ),
    Kept(
        "coverage.json",
        "how often predicted bounds hold: [coverage](coverage.md)",
        "`python -m benchmarks.coverage prompts`, then `run`",
        _coverage,
        "prompts",
    ),
    Kept(
        "readings",
        "what [every reading](readings.md) says of one probe",
        "`python -m benchmarks.readings run MODEL`, `floor`",
        _lines,
        "prompts",
        "a CPU",
    ),
    Kept(
        "begun",
        "the same with [the answer begun](begun.md)",
        "`python -m benchmarks.begun run MODEL`",
        _lines,
        "prompts",
        "a CPU",
    ),
    Kept(
        "float8.json",
        "the same prompts with weights as stored and [in fp8](float8.md)",
        "`python -m benchmarks.float8 run`",
        _paired,
        "prompts",
        "a CPU",
    ),
    Kept(
        "opening.json",
        "the same prompts, the first block opened by a pass and [by the probe's keys](opening.md)",
        "`python -m benchmarks.opening run`",
        _paired,
        "prompts",
        "a CPU",
    ),
    Kept(
        "bench",
        "[what passes cost](passes.md) at real shapes",
        "`python -m benchmarks.passes --shape SHAPE`",
        _run,
        "lines",
    ),
    Kept(
        "serving",
        "[the server](serving.md) under load, and [routing](routing.md)",
        "`python -m benchmarks.serving`, `python -m benchmarks.serving.routing`",
        _run,
        "arms",
    ),
    Kept(
        "scaling",
        "[workers of a pool](scaling.md): more and more processes",
        "`python -m benchmarks.scaling --workers 1 2 4 8`",
        _runs,
        "runs",
    ),
    Kept(
        "scale.json",
        "[a thousand replicas](scale.md), simulated",
        "`python -m benchmarks.scale`",
        _run,
        "arms",
        "simulated",
    ),
    Kept(
        "training",
        "[training logs](embedded-models.md#training) of the embedded models and of trials",
        "`python -m training.train`, `python -m training.check`",
        _whole,
        "",
        HARDWARE,
    ),
)


def files_of(kept: Kept) -> list[Path]:
    """The files of a row, by name."""
    found = sorted(RECORDS.parent.glob(kept.path))
    inner = [path for folder in found if folder.is_dir() for path in sorted(folder.rglob("*.*"))]
    return [path for path in inner or found if path.is_file()]


def records() -> str:
    """Every folder of records: what is in it, what makes it, where it ran and how much there is."""
    rows = ["| folder | what | made by | hardware | how many |", "|---|---|---|---|---:|"]
    for kept in KEPT:
        files = files_of(kept)
        told = [kept.counted(path) for path in files]
        where = dict.fromkeys(
            ", ".join(filter(None, (about["hardware"], about.get("dtype")))) for about, _ in told if "hardware" in about
        )
        counted = f", {sum(count for _, count in told):,} {kept.unit}" if kept.unit else ""
        rows.append(
            f"| `{kept.path}` | {kept.what} | {kept.command} | {'; '.join(where) or kept.hardware} "
            f"| {len(files)} {'file' if len(files) == 1 else 'files'}{counted} |"
        )
    return "\n".join(rows)


def parameters(weights: Path) -> int:
    """Return the number of values in a safetensors file, by its header."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(own["shape"]) for name, own in header.items() if name != "__metadata__")


def models() -> str:
    """The embedded models: whose format, what they were trained on and how long, size and accuracy."""
    rows = [
        "| model | format | training rows | from | steps | seconds | parameters | accuracy |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for name in MODELS:
        settings = read_settings(ROOT / "training" / f"{name}.toml")
        told = history(shipped_log(name))
        shares = accuracy(name)
        resumed = "".join(f", resumed at {step:,}" for step in told.resumed)
        cells = (
            name,
            {"llada": "LLaDA", "dream": "Dream"}[settings.family],
            {"packed": "packed documents", "padded": "padded answers"}[settings.rows_are],
            Path(settings.start).name or "random weights",
            f"{told.steps:,}{resumed}",
            f"{told.seconds:,.0f}",
            f"{parameters(FOLDER / name / 'model.safetensors'):,}",
            f"{sum(shares.values()) / len(shares):.3f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *rows,
            "",
            f"Trained on one {HARDWARE}, which other runs may have shared. Accuracy: fixed canvas of 256, "
            f"one token a pass, {asked(MODELS[0]) * len(BENCHMARKS):,} test prompts.",
        ]
    )


def training_runs() -> str:
    """Validation accuracy during training, by run and step, and of two mixtures of training rows."""
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
    return "\n".join([*rows, "", "60 validation prompts per family, fixed canvas of 256, one token per pass."])
