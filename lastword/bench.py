"""`lastword bench`: time the decode loop of models with weights, recipe by recipe, and keep a record.

All recipes decode the same validation prompts in the same run. The decode loop is timed, from the first probe
to the last token; tokenization is not.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

import lastword
from lastword.api import MAX_BATCH_SIZE, default_batch_size, trimmed
from lastword.decoding.batch_state import supports_static_shapes
from lastword.decoding.forward import Hooks
from lastword.decoding.loop import Step, decode
from lastword.decoding.running_batch import FinishedRow
from lastword.decoding.sampling import Sampling
from lastword.engines.base import compute_dtype, environment
from lastword.errors import SettingError
from lastword.io.schema import STRICT, Count, Share, Text, read_json_object, validate
from lastword.models.base import MaskPredictor
from lastword.prompts import tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import RECIPES
from lastword.tasks import BENCHMARKS
from lastword.tasks.frozen import load_frozen

# Length policies without a limit use the model's default canvas.
BENCH_RECIPES: dict[str, Recipe] = {
    **{name: Recipe.named(name) for name in RECIPES},
    "default": Recipe(),
    "sampled": Recipe(sampling=Sampling(temperature=0.7)),
}
GPU_SECONDS, CPU_SECONDS = 30, 2  # a warm-up or a measurement ends after the run that exceeds this

Figure = Annotated[float, Field(ge=0, le=1e15)]
Setting = bool | Annotated[int, Field(ge=0, le=10**9)] | Figure | Text | list[Count]
DIGITS = 6  # of a figure in a record


class RecordPart(BaseModel):
    """A part of a record of measurements, validated when it is made and when it is read."""

    model_config = ConfigDict(**STRICT, frozen=True)


class BenchLine(RecordPart):
    """The figures of a measurement; those that do not apply or cannot be measured on the device are None."""

    line: Text  # the kind of the measurement
    case: Text
    rows: Count = 1
    runs: Count = 0  # timed runs, without the warm-up
    ms: Figure | None = None  # per forward pass, median
    seconds: Figure | None = None  # per answer or batch, median
    first_seconds: Figure | None = None  # the first warm-up run, which compiles kernels and captures graphs
    forward_passes: Count | None = Field(
        default=None, validation_alias=AliasChoices("forward_passes", "passes")
    )  # of the batch
    tokens: Count | None = None  # before the end of their row
    tokens_computed: Figure | None = Field(
        default=None, validation_alias=AliasChoices("tokens_computed", "columns")
    )  # per forward pass where only `ms` is given
    peak_mb: Figure | None = None  # device memory beyond what was allocated before
    tokens_per_second: Figure | None = None
    tokens_per_forward: Figure | None = None
    useful_share: Share | None = Field(
        default=None, validation_alias=AliasChoices("useful_share", "useful_columns")
    )  # share of the computed tokens that belong to an unfinished row and are not padding
    occupancy: Share | None = None  # mean share of the batch in use while prompts were waiting
    solo: Count | None = None  # rows that were also decoded alone
    solo_equal: Count | None = None  # those of them with the same answer


class BenchRecord(RecordPart):
    """The results of one run: machine, settings, notes and a line per measurement."""

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
    seconds: Figure | None  # of the whole run
    lines: Sequence[BenchLine]

    def to_json(self) -> str:
        """Return the record as JSON with one text line per measurement."""
        data = _rounded(self.model_dump())
        lines = ",\n  ".join(
            json.dumps({name: value for name, value in line.items() if value is not None})
            for line in data.pop("lines")
        )
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


AnyLine = TypeVar("AnyLine", bound=BenchLine)
AnyRecord = TypeVar("AnyRecord", bound=BenchRecord)


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Return the record in a file."""
    try:
        return validate(kind, read_json_object(path))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path} is not a record of lastword bench ({error}); make one with lastword bench --out {path}"
        ) from error


def _rounded(value: Any) -> Any:
    """Return JSON data with its floats rounded to `DIGITS` digits."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Timing:
    """Wall time of a call that was repeated."""

    ms: int | float  # median
    runs: int
    peak_mb: float | None  # device memory beyond what was allocated before; None on a CPU
    first_seconds: int | float = 0  # of the first warm-up call


@dataclass(frozen=True)
class Timer:
    """Calls functions `warm_up` times, then measures `repeats` calls, or fewer if those exceed `seconds`."""

    device: torch.device
    repeats: int = 3
    warm_up: int = 1
    seconds: int | float = 2

    def median(self, call: Callable[[], object], warm: Callable[[], object] | None = None) -> Timing:
        """Return the median time of a call; `warm` is a shorter call to warm up with."""
        allocated = self._start()
        first = self._warm(warm or call)
        times: list[int | float] = []
        while not times or (len(times) < self.repeats and sum(times) < self.seconds):
            times.append(self.time(call))
        return Timing(1000 * statistics.median(times), len(times), self._peak_mb(allocated), first)

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

    def _warm(self, call: Callable[[], object]) -> int | float:
        """Make the warm-up calls and return the seconds of the first one."""
        times: list[int | float] = []
        while len(times) < self.warm_up and sum(times) < self.seconds:
            times.append(self.time(call))
        return times[0] if times else 0

    def _start(self) -> int:
        """Reset the peak of the device memory and return the bytes that are allocated."""
        if self.device.type != "cuda":
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def _peak_mb(self, allocated: int) -> float | None:
        if self.device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self.device) - allocated) / 2**20


class StepTotals:
    """Totals over the steps of one decoding: forward passes, computed tokens, rows in use, finished rows.

    Computed tokens are counted where shapes are static: a pass inside a block computes the block in every row
    of the batch, and a pass that starts blocks computes what its rows need. With dynamic shapes the padding
    is not known without a device synchronization, so `useful` is None.
    """

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts = num_prompts
        self._static: bool | None = None
        self._started: set[int] = set()
        self._rows_in_use = self._rows_available = 0  # summed over the passes while prompts were waiting
        self._row_costs: dict[int, tuple[int, int]] = {}  # forward passes and tokens computed, by prompt
        self._computed = 0
        self.forward_passes = 0
        self.finished: list[FinishedRow] = []

    @classmethod
    def of(cls, steps: Iterable[Step], num_prompts: int) -> StepTotals:
        """Return the totals of all steps of a decoding of `num_prompts` prompts."""
        totals = cls(num_prompts)
        for step in steps:
            totals.add(step)
        return totals

    @property
    def useful(self) -> float | None:
        """Share of the computed tokens that belong to an unfinished row and are not padding."""
        needed = sum(row.cost.tokens_computed for row in self.finished)
        return needed / self._computed if self._computed else None

    @property
    def occupancy(self) -> float | None:
        """Mean share of the batch in use while prompts were waiting; None if none had to wait."""
        return self._rows_in_use / self._rows_available if self._rows_available else None

    def add(self, step: Step) -> None:
        """Add a step; to be called before the next step is computed."""
        if self._static is None:
            self._static = supports_static_shapes(
                step.canvas.device, step.recipe, Hooks(), len(step.request_ids)
            )
        prompts = [prompt for prompt in step.request_ids if prompt is not None]
        passes = self._passes_of(step) if self._static else 1
        self.forward_passes += passes
        self._started.update(prompts)
        if len(self._started) < self._num_prompts:
            self._rows_in_use += passes * len(prompts)
            self._rows_available += passes * len(step.request_ids)
        self.finished += step.finished

    def _passes_of(self, step: Step) -> int:
        """Return the forward passes of a step, several if a graph was replayed, and add their tokens."""
        costs = (step.cost.forward_passes, step.cost.tokens_computed, step.clock.block_start)
        passes, tokens, starts = 0, 0, False
        for prompt, row_passes, row_tokens, start in zip(step.request_ids, *torch.stack(costs).tolist()):
            if prompt is not None:
                before = self._row_costs.get(prompt, (0, 0))
                self._row_costs[prompt] = (row_passes, row_tokens)
                passes = max(passes, row_passes - before[0])
                tokens += row_tokens - before[1]
                starts |= bool(start) and row_passes > before[0]
        in_block = not starts and step.recipe.cache.traits.stores_states
        block = step.recipe.block or 0
        self._computed += len(step.request_ids) * block * passes if in_block else tokens
        return passes


def bench_prompts(model: MaskPredictor, count: int) -> list[Any]:
    """Return validation prompts, families in turn, as chats if the model has a chat template."""
    families = [load_frozen("validation", family) for family in BENCHMARKS]
    texts = [example.prompt for examples in zip(*families) for example in examples]
    if count > len(texts):
        raise SettingError(
            f"rows is {count}; there are {len(texts)} validation prompts, give at most so many"
        )
    if model.tokenizer is None:
        raise SettingError("the model has no tokenizer, which bench needs; give a model that has one")
    if getattr(model.tokenizer, "chat_template", None) is None:
        return texts[:count]
    return [[{"role": "user", "content": text}] for text in texts[:count]]


def time_recipe(
    model: MaskPredictor,
    prompts: Sequence[Any],
    recipe: Recipe,
    timer: Timer,
    max_batch_size: int,
    solo: int = 0,
) -> BenchLine:
    """Time the decoding of all prompts; `solo` of them are also decoded alone and compared."""
    encoded, rows = tokenize_prompts(model, prompts), len(prompts)
    totals = StepTotals(rows)

    def run() -> None:
        nonlocal totals
        steps = decode(model, encoded, recipe, max_batch_size=max_batch_size, use_cuda_graphs=True)
        totals = StepTotals.of(steps, rows)

    timing = timer.median(run)
    costs = [cost for row in totals.finished for cost in (row.cost, row.probe_cost)]
    answers = {row.request_id: row.canvas.answer_ids(0) for row in totals.finished}
    tokens = sum(len(trimmed(row.canvas, 0, answers[row.request_id])[0]) for row in totals.finished)
    seconds = timing.ms / 1000
    line = BenchLine(
        line="recipes",
        case=recipe.label(),
        rows=rows,
        runs=timing.runs,
        ms=timing.ms / totals.forward_passes,
        seconds=seconds,
        first_seconds=timing.first_seconds,
        forward_passes=totals.forward_passes,
        tokens=tokens,
        tokens_computed=float(sum(cost.tokens_computed for cost in costs)),
        peak_mb=timing.peak_mb,
        tokens_per_second=tokens / seconds,
        tokens_per_forward=tokens / sum(cost.forward_passes for cost in costs),
        useful_share=totals.useful,
        occupancy=totals.occupancy,
    )
    if not solo:
        return line
    chosen = [index * rows // solo for index in range(solo)]
    alone = (lastword.generate(model, prompts[index], recipe=recipe, seed=index) for index in chosen)
    equal = sum(answer.canvas == answers[index] for index, answer in zip(chosen, alone))
    return line.model_copy(update={"solo": solo, "solo_equal": equal})


def bench(
    models: Sequence[str],
    recipes: Sequence[str],
    rows: int,
    *,
    max_batch_size: int | None = None,
    device: torch.device,
    dtype: str = "auto",
    repeats: int = 1,
    solo: int = 0,
    on_line: Callable[[BenchLine], object] = lambda line: None,
) -> BenchRecord:
    """Time recipes (names of `BENCH_RECIPES`) on models and return the record; `on_line` gets each result."""
    start = time.perf_counter()
    # The second warm-up run captures graphs for lengths that came up rarely in the first one.
    seconds = GPU_SECONDS if device.type == "cuda" else CPU_SECONDS
    timer = Timer(device, repeats, warm_up=2, seconds=seconds)
    lines: list[BenchLine] = []
    model: Any = None
    for name in models:
        model = lastword.load(name, device=device, dtype=dtype)
        prompts = bench_prompts(model, rows)
        batch_size = min(rows, max_batch_size or default_batch_size(model))
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
        settings={"rows": rows, "slots": max_batch_size or MAX_BATCH_SIZE},
        notes=[
            "Validation prompts, families in turn; every recipe on the model's own canvas; seconds from the "
            "first probe to the last token, of a run of the same rows after one that compiled kernels and "
            "captured graphs; that one's seconds stand beside."
        ],
        seconds=time.perf_counter() - start,
        lines=lines,
    )


COLUMNS: dict[str, tuple[Callable[[BenchLine], float | None], str]] = {
    "rows": (lambda line: line.rows, ",d"),
    "seconds": (lambda line: line.seconds, ",.3f"),
    "the first time": (lambda line: line.first_seconds, ",.3f"),
    "passes": (lambda line: line.forward_passes, ",d"),
    "ms a pass": (lambda line: line.ms, ",.2f"),
    "tokens/s": (lambda line: line.tokens_per_second, ",.0f"),
    "tokens a forward": (lambda line: line.tokens_per_forward, ".2f"),
    "columns": (lambda line: line.tokens_computed, ",.0f"),
    "useful columns": (lambda line: line.useful_share, ".1%"),
    "slots in use": (lambda line: line.occupancy, ".1%"),
    "decoded alone": (lambda line: line.solo, ",d"),
    "and equal": (lambda line: line.solo_equal, ",d"),
    "peak, MB": (lambda line: line.peak_mb, ",.0f"),
}


def markdown_table(
    lines: Sequence[AnyLine], columns: Mapping[str, tuple[Callable[[AnyLine], float | None], str]]
) -> str:
    """Return the lines as a Markdown table without the columns that would be empty."""
    used = {
        name: (cell, form)
        for name, (cell, form) in columns.items()
        if any(cell(line) is not None for line in lines)
    }
    rows = [f"| line | {' | '.join(used)} |", f"|---|{'---:|' * len(used)}"]
    for line in lines:
        cells = ("" if (value := cell(line)) is None else format(value, form) for cell, form in used.values())
        rows.append(f"| {line.line}: {line.case} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _times_fixed(lines: Sequence[BenchLine]) -> Callable[[BenchLine], float | None]:
    """Return the speed of a line compared with the recipe `fixed` of the same model."""
    fixed = {line.case.partition(", ")[0]: line.seconds for line in lines if line.case.endswith(", fixed")}

    def times(line: BenchLine) -> float | None:
        seconds = fixed.get(line.case.partition(", ")[0])
        return seconds / line.seconds if seconds and line.seconds else None

    return times


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
    columns = COLUMNS | {"times the fixed canvas": (_times_fixed(record.lines), ",.1f")}
    notes = "\n".join(f"- {note}" for note in record.notes)
    return "\n\n".join([heading(record), markdown_table(record.lines, columns), notes])
