"""`lastword bench`: time the decode loop per recipe on models with weights, and make a record of the results.

All recipes decode the same validation prompts in the same run. The decode loop is timed, from the first probe
to the last token; tokenization is not.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

import lastword
from lastword.api import MAX_BATCH_SIZE, default_batch_size, trimmed
from lastword.decoding.loop import decode
from lastword.decoding.running_batch import FinishedRow
from lastword.decoding.sampling import Sampling
from lastword.engines.base import compute_dtype, environment
from lastword.errors import SettingError
from lastword.io.schema import STRICT, Count, Share, Text, read_json_object, validate
from lastword.models.base import MaskPredictor
from lastword.prompts import tokenize_prompts, with_chat_template
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES
from lastword.tasks import BENCHMARKS, load_frozen
from lastword.validation import check_int

# A length policy without a limit uses the model's `default_max_new_tokens`.
BENCH_RECIPES: dict[str, Recipe] = {
    **{name: Recipe.named(name) for name in RECIPES},
    "default": Recipe(),
    "sampled": Recipe(sampling=Sampling(temperature=0.7)),
}
GPU_SECONDS, CPU_SECONDS = 30, 2  # a warm-up or a measurement ends after the run that exceeds this

Figure = Annotated[float, Field(ge=0, le=1e15)]
Setting = bool | Annotated[int, Field(ge=0, le=10**9)] | Figure | Text | list[Count]
DIGITS = 6  # significant digits of a number in a record


class RecordPart(BaseModel):
    """The base class of a record and of its lines, validated when constructed and when read from a file."""

    model_config = ConfigDict(**STRICT, frozen=True)


def _renamed(old: str, new: str) -> Any:
    """Return an optional field whose name is `old` in older records."""
    return Field(default=None, validation_alias=AliasChoices(new, old))


class BenchLine(RecordPart):
    """The results of one measurement; a result that does not apply or cannot be measured on the device is None."""

    line: Text  # the kind of the measurement
    case: Text
    rows: Count = 1
    runs: Count = 0  # timed runs, without the warm-up
    ms: Figure | None = None  # per forward pass, median
    seconds: Figure | None = None  # per answer or batch, median
    first_seconds: Figure | None = None  # the first warm-up run, which compiles kernels and captures graphs
    forward_passes: Count | None = _renamed("passes", "forward_passes")  # of the batch
    tokens: Count | None = None  # of all answers, without end tokens and later slots
    tokens_computed: Figure | None = _renamed("columns", "tokens_computed")  # per pass if only `ms` is given
    peak_mb: Figure | None = None  # device memory beyond what was allocated before
    tokens_per_second: Figure | None = None
    tokens_per_forward: Figure | None = None
    useful_share: Share | None = _renamed("useful_columns", "useful_share")  # of the computed tokens
    occupancy: Share | None = None  # mean share of the batch in use while prompts were waiting
    solo: Count | None = None  # rows that were also decoded alone
    solo_equal: Count | None = None  # the number of `solo` with the same answer as in the batch


class BenchRecord(RecordPart):
    """The results of one benchmark run: machine, settings, notes and a line per measurement."""

    kind: Literal["bench"] = "bench"
    shape: Text
    hardware: Text
    dtype: Text
    weights: Text
    versions: dict[Text, Text]
    warm_up: Count
    repeats: Count
    settings: dict[Text, Setting]
    notes: list[Text]
    seconds: Figure | None = None  # of the whole run
    lines: Sequence[BenchLine]

    def to_json(self) -> str:
        """Return the record as JSON with one text line per measurement."""
        text = self.model_dump_json(exclude_none=True)
        data = json.loads(text, parse_float=lambda number: float(f"{float(number):.{DIGITS}g}"))
        lines = ",\n  ".join(json.dumps(line) for line in data.pop("lines"))
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


AnyRecord = TypeVar("AnyRecord", bound=BenchRecord)


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Return the record of class `kind` in a JSON file; raise SettingError if the file has none."""
    try:
        return validate(kind, read_json_object(path))
    except (OSError, ValueError) as error:
        remedy = f"make one with lastword bench --out {path}"
        raise SettingError(f"{path} is not a record of lastword bench ({error}); {remedy}") from error


@dataclass(frozen=True)
class Timing:
    """The wall-clock time of a repeated call."""

    ms: int | float  # median
    runs: int
    peak_mb: float | None  # device memory beyond what was allocated before; None on a CPU
    first_seconds: int | float = 0  # of the first warm-up call


@dataclass(frozen=True)
class Timer:
    """A timer of repeated calls: `warm_up` calls, then `repeats` timed ones; each series ends early after `seconds`."""

    device: torch.device
    repeats: int = 3
    warm_up: int = 1
    seconds: int | float = 2

    def median(self, call: Callable[[], object], warm: Callable[[], object] | None = None) -> Timing:
        """Return the median time of `call`; `warm` is a shorter call for the warm-up."""
        allocated = self.reset_peak()
        first = next(iter(self.time_calls(warm or call, self.warm_up)), 0)
        times = self.time_calls(call, self.repeats)
        return Timing(1000 * statistics.median(times), len(times), self.peak_mb(allocated), first)

    def time_calls(self, call: Callable[[], object], calls: int) -> list[int | float]:
        """Return the seconds of each call; after `self.seconds` in total, no further call is made."""
        times: list[int | float] = []
        while len(times) < calls and sum(times) < self.seconds:
            times.append(self.time(call))
        return times

    def time(self, call: Callable[[], object]) -> int | float:
        """Return the seconds of one call, including its work on the device."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reset_peak(self) -> int | None:
        """Reset the peak statistics of the GPU memory and return the allocated bytes, or None without CUDA."""
        if self.device.type != "cuda":
            return None
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def peak_mb(self, allocated: int | None) -> float | None:
        """Return the peak GPU memory in MiB beyond the `allocated` bytes, or None without CUDA."""
        return None if allocated is None else (torch.cuda.max_memory_allocated(self.device) - allocated) / 2**20


def bench_prompts(model: MaskPredictor, count: int) -> list[Any]:
    """Return `count` validation prompts, task families in turn; as chat messages if the model has a template."""
    families = [load_frozen("validation", family) for family in BENCHMARKS]
    texts = [example.prompt for examples in zip(*families) for example in examples]
    if count > len(texts):
        raise SettingError(f"limit is {count}; there are {len(texts)} validation prompts, give at most that")
    if model.tokenizer is None:
        raise SettingError("the model has no tokenizer, which bench needs; give a model that has one")
    return list(with_chat_template(model, texts[:count], None))


def time_recipe(
    model: MaskPredictor, prompts: Sequence[Any], recipe: Recipe, timer: Timer, max_batch_size: int, solo: int = 0
) -> BenchLine:
    """Return the timing of decoding all prompts; `solo` prompts are also decoded alone to compare the answers."""
    encoded, count = tokenize_prompts(model, prompts), len(prompts)
    forward_passes = 0
    finished: list[FinishedRow] = []

    def run() -> None:
        nonlocal forward_passes
        forward_passes, passes_before = 0, dict[int, int]()
        finished.clear()
        for step in decode(model, encoded, recipe, max_batch_size=max_batch_size, use_cuda_graphs=True):
            # A step that replays a CUDA graph may contain several forward passes.
            row_passes = zip(step.request_ids, step.cost.forward_passes.tolist())
            active = {request: passes for request, passes in row_passes if request is not None}
            forward_passes += max(passes - passes_before.get(request, 0) for request, passes in active.items())
            passes_before |= active
            finished.extend(step.finished)

    timing = timer.median(run)
    seconds, timed = timing.ms / 1000, asdict(timing) | {"ms": timing.ms / forward_passes}
    costs = [cost for row in finished for cost in (row.cost, row.probe_cost)]
    answers = {row.request_id: row.canvas.answer_ids(0) for row in finished}
    tokens = sum(len(trimmed(row.canvas, answers[row.request_id])[0]) for row in finished)
    indices = [index * count // solo for index in range(solo)]
    alone = (lastword.generate(model, prompts[index], recipe=recipe, seed=index) for index in indices)
    equal = sum(answer.canvas == answers[index] for index, answer in zip(indices, alone))
    return BenchLine(
        line="recipes",
        case=recipe.label(),
        rows=count,
        seconds=seconds,
        forward_passes=forward_passes,
        tokens=tokens,
        tokens_computed=float(sum(cost.tokens_computed for cost in costs)),
        tokens_per_second=tokens / seconds,
        tokens_per_forward=tokens / sum(cost.forward_passes for cost in costs),
        solo=solo or None,
        solo_equal=equal if solo else None,
        **timed,
    )


def bench(
    models: Sequence[str],
    recipes: Sequence[str],
    limit: int,
    *,
    max_batch_size: int | None = None,
    device: torch.device,
    dtype: str = "auto",
    repeats: int = 1,
    solo: int = 0,
    on_line: Callable[[BenchLine], object] = lambda line: None,
) -> BenchRecord:
    """Time recipes (names of `BENCH_RECIPES`) on models and return the record; call `on_line` with each result."""
    for name, value in (("limit", limit), ("repeats", repeats), ("max_batch_size", max_batch_size)):
        if value is not None:
            check_int("bench", name, value, minimum=1)
    check_int("bench", "solo", solo, minimum=0, maximum=limit)
    for recipe in recipes:
        if recipe not in BENCH_RECIPES:
            raise SettingError(f"--recipes {recipe!r} is unknown; give some of {', '.join(BENCH_RECIPES)}")
    start = time.perf_counter()
    # The second warm-up run captures CUDA graphs for lengths that were too rare in the first one.
    seconds = GPU_SECONDS if device.type == "cuda" else CPU_SECONDS
    timer = Timer(device, repeats, warm_up=2, seconds=seconds)
    lines: list[BenchLine] = []
    model: Any = None
    for name in models:
        model = lastword.load(name, device=device, dtype=dtype)
        prompts = bench_prompts(model, limit)
        batch_size = min(limit, max_batch_size or default_batch_size(model))
        for recipe in recipes:
            line = time_recipe(model, prompts, BENCH_RECIPES[recipe], timer, batch_size, solo)
            lines.append(line.model_copy(update={"case": f"{name}, {recipe}"}))
            on_line(lines[-1])
    return BenchRecord(
        **environment(model),
        shape="embedded",
        dtype=compute_dtype(model),
        weights="plain",
        warm_up=timer.warm_up,
        repeats=repeats,
        settings={"rows": limit, "slots": max_batch_size or MAX_BATCH_SIZE},
        notes=[
            "Validation prompts, families in turn; every recipe on the model's default canvas. Seconds are "
            "from the first probe to the last token, after warm-up runs of the same prompts."
        ],
        seconds=time.perf_counter() - start,
        lines=lines,
    )


Column = tuple[str | Callable[[Any], float | None], str]  # the field name or function of a line, and the number format
COLUMNS: dict[str, Column] = {
    "prompts": ("rows", ",d"),
    "seconds": ("seconds", ",.3f"),
    "first run, s": ("first_seconds", ",.3f"),
    "forward passes": ("forward_passes", ",d"),
    "ms per pass": ("ms", ",.2f"),
    "tokens/s": ("tokens_per_second", ",.0f"),
    "tokens per pass": ("tokens_per_forward", ".2f"),
    "tokens computed": ("tokens_computed", ",.0f"),
    "useful": ("useful_share", ".1%"),
    "rows in use": ("occupancy", ".1%"),
    "decoded alone": ("solo", ",d"),
    "equal": ("solo_equal", ",d"),
    "peak memory, MB": ("peak_mb", ",.0f"),
}


def markdown_table(lines: Sequence[BenchLine], columns: dict[str, Column]) -> str:
    """Return the lines as a Markdown table without empty columns."""
    cells: dict[str, list[str]] = {}
    for name, (cell, form) in columns.items():
        values = [getattr(line, cell) if isinstance(cell, str) else cell(line) for line in lines]
        if any(value is not None for value in values):
            cells[name] = ["" if value is None else format(value, form) for value in values]
    rows = [f"| line | {' | '.join(cells)} |", f"|---|{'---:|' * len(cells)}"]
    for line, *row in zip(lines, *cells.values()):
        rows.append(f"| {line.line}: {line.case} | {' | '.join(row)} |")
    return "\n".join(rows)


def heading(record: BenchRecord) -> str:
    """Return the sentence above the tables of a record: machine, versions and repeats."""
    weights = "" if record.weights == "plain" else f", {record.weights} weights"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return (
        f"{record.shape}: {record.hardware}, {record.dtype}{weights}, {versions}; medians of up to "
        f"{record.repeats} runs after {record.warm_up} to warm up."
    )


def to_markdown(record: BenchRecord) -> str:
    """Return a record as Markdown: heading, table and notes."""
    seconds_of = {line.case: line.seconds for line in record.lines}

    def speedup(line: BenchLine) -> float | None:
        """Return the speedup over the recipe `fixed` of the same model; None if one of them was not timed."""
        seconds = seconds_of.get(f"{line.case.partition(', ')[0]}, fixed")
        return seconds / line.seconds if seconds and line.seconds else None

    notes = "\n".join(f"- {note}" for note in record.notes)
    table = markdown_table(record.lines, COLUMNS | {"times the fixed canvas": (speedup, ",.1f")})
    return "\n\n".join([heading(record), table, notes])
