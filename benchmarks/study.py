"""Measure groups of arms by decoding prompts with the embedded models; `benchmarks.arms` defines the arms.

    python -m benchmarks.study run --arms paper              the arms of the paper's tables (a GPU)
    python -m benchmarks.study run --arms lengths            all length policies
    python -m benchmarks.study run --arms parts --workers 1  every decoding part, timed
    python -m benchmarks.study run --arms confirm peers      the default on unseen prompts
    python -m benchmarks.study run --arms lengths --engine ray --address auto --workers 8
    python -m benchmarks.study keep                          write compact records to commit
    python -m benchmarks.study list                          list arms and groups

An interrupted run resumes, and arms in the kept records are not measured again. With `--workers`, each worker
process takes one arm at a time. With `--engine processes` or `ray`, the workers share the prompts of one arm
after the other; drift, which examines every step, runs in this process.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

import lastword
from benchmarks.arm_files import Arms, by_arm, file_of, keep, read_arms
from benchmarks.arms import DRIFT, FIXED_MEAN, FIXED_MEANS, FRESH, GROUPS, MODELS, SEED, SLOTS, UNSEEN, recipe_of
from benchmarks.paper.tables import mean_slots
from lastword.cli.options import LOCAL, PROCESSES, RAY, EngineOptions
from lastword.engines.base import Engine
from lastword.engines.local import ModelSource
from lastword.errors import SettingError
from lastword.evaluate import Journal, drift
from lastword.evaluate.journal import read_records
from lastword.evaluate.records import Answer, Record
from lastword.evaluate.run import evaluate
from lastword.evaluate.tasks import EmbeddedTask, Task, embedded_tasks
from lastword.models import layers
from lastword.models.weights import fingerprint
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS, Example, load_frozen
from training.tasks.generators import example_stream

RECORDS = Path(__file__).parent / "records" / "study"
RAW = Path("out/study")
Value = TypeVar("Value")
SHOWN_PROMPTS = 500  # frozen test prompts per family that the tables use
FRESH_PROMPTS = 200  # per family
WARM_UP = 64  # maximum number of prompts that are decoded before a recipe is timed


class Unseen(EmbeddedTask):
    """The frozen test prompts of a family that were not decoded before all choices were final."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.split, self.examples = UNSEEN, self.examples[SHOWN_PROMPTS:]


class Fresh(EmbeddedTask):
    """Prompts of a family that are not frozen, the same ones in every run."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.split, self.examples = FRESH, fresh(family)


@cache
def fresh(family: str) -> tuple[Example, ...]:
    """Return test prompts with another seed than the frozen ones."""
    frozen = {example.prompt for example in load_frozen("test", family)}
    stream = (example for example in example_stream("test", family, SEED) if example.prompt not in frozen)
    return tuple(islice(stream, FRESH_PROMPTS))


@dataclass(frozen=True)
class Job:
    """The measurement of an arm on a model."""

    model: str
    arm: str
    split: str
    per_family: int
    one_task_per_batch: bool = False


def jobs(groups: Sequence[str], per_family: int | None, models: Sequence[str]) -> list[Job]:
    """Return the distinct jobs of the groups, ordered by arm and then by model, so that several workers share them."""
    for kind, names, known in (("group", groups, GROUPS), ("model", models, MODELS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise SettingError(f"{kind} {unknown[0]!r} is unknown; known: {', '.join(known)}")
    wanted = [
        Job(model, arm, group.split, per_family or group.per_family, group.one_task_per_batch)
        for group in (GROUPS[name] for name in groups)
        for arm in group.arms
        for model in group.models
        if not models or model in models
    ]
    return list(dict.fromkeys(wanted))


def fuse(backend: str = "inductor") -> None:
    """Compile norms and rotations for every model of this process; they are limited by memory bandwidth.

    Compiled kernels round once instead of twice, so the last bit of a logit may differ.
    """
    for owner, name in ((layers.RMSNorm, "forward"), (layers, "rotate")):
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=True, backend=backend))


class Bench:
    """The model and the tasks of a worker. They stay loaded, because most jobs of a worker are about one model."""

    def __init__(self, device: str, exclusive: bool, options: EngineOptions = EngineOptions()) -> None:
        self.exclusive = exclusive  # no other worker runs, so answers are timed
        self.options = options
        self.engine: Engine | None = None  # None: decode in this process
        self._name = ""
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if self.device == "cuda" and not exclusive:
            fuse()  # faster over the whole run, but not timed: new shapes are compiled during decoding
        self._tasks: dict[str, list[Any]] = {}
        self.model: Any = None

    def use(self, name: str) -> Any:
        if name != self._name and self.options.engine != LOCAL:
            self.close()
            self.engine = self.options.open(ModelSource(name, device=self.device))
            self.model, self._name = self.engine.model_info, name
            self._tasks.clear()
        elif name != self._name:
            self.model, self._name = lastword.load(name, device=self.device), name
            self._tasks.clear()  # tasks cache the scores of answers, which belong to one model
            self.warm_up(Recipe(length=Fixed(16)), 16 if self.device == "cuda" else 1)
        return self.model

    def close(self) -> None:
        """Stop the workers of the engine."""
        if self.engine is not None:
            self.engine.close()
            self.engine, self._name = None, ""

    def warm_up(self, recipe: Recipe, prompts: int) -> None:
        """Decode some prompts, because kernels are chosen and memory is allocated on first use."""
        journal = Journal(RAW / f"warm-up.{os.getpid()}.jsonl")
        tasks = embedded_tasks(["algebra"], "validation")
        evaluate(self.model, self._name, tasks, recipe, journal, limit=prompts, max_batch_size=prompts)
        journal.path.unlink()

    def tasks(self, split: str) -> list[Any]:
        if split not in self._tasks:
            task_class = {UNSEEN: Unseen, FRESH: Fresh}.get(split)
            self._tasks[split] = [*map(task_class, BENCHMARKS)] if task_class else embedded_tasks(split=split)
        return self._tasks[split]


def measure(bench: Bench, job: Job, batch_size: int, out: Path) -> Iterator[Record]:
    """Yield the records of a job."""
    model, tasks = bench.use(job.model), bench.tasks(job.split)

    def answer(tasks: Sequence[Task], recipe: Recipe) -> list[Answer]:
        journal = _journal(out, job.model, job.split, recipe)
        if bench.exclusive and bench.device == "cuda":
            bench.warm_up(recipe, min(batch_size, WARM_UP))
        return [
            record
            for batch in ([[task] for task in tasks] if job.one_task_per_batch else [tasks])
            for record in evaluate(
                model, job.model, batch, recipe, journal,
                limit=job.per_family, max_batch_size=batch_size, timed=bench.exclusive, engine=bench.engine,
            )
        ]  # fmt: skip

    if job.arm == DRIFT:
        journal = Journal(out / f"{job.model}.{job.split}.{DRIFT}.jsonl")
        if bench.engine is not None:
            model = lastword.load(job.model, device=bench.device)
        yield from drift(
            model, job.model, tasks, journal,
            length=Survival(SLOTS), limit=job.per_family, max_batch_size=batch_size,
        )  # fmt: skip
    elif job.arm == FIXED_MEAN:
        yield from answer(tasks, fixed_at(answer(tasks, recipe_of("survival"))))
    elif job.arm == FIXED_MEANS:
        for task in tasks:
            yield from answer([task], fixed_at(answer([task], recipe_of("survival"))))
    else:
        yield from answer(tasks, recipe_of(job.arm))


def fixed_at(records: Sequence[Answer]) -> Recipe:
    """Return the recipe with a fixed canvas of the mean length of these predictions."""
    return Recipe.named("fixed").with_choices(length=Fixed(mean_slots(records)))


def _journal(out: Path, model: str, split: str, recipe: Recipe) -> Journal:
    """Return the journal of a model and recipe; only one worker writes to it."""
    digest = sha256(recipe.to_json().encode()).hexdigest()[:12]
    return Journal(out / f"{model}.{split}.{digest}.jsonl")


_BENCH: Bench | None = None


def process_bench(device: str, exclusive: bool) -> Bench:
    """Return the `Bench` of this process, which is made on first use."""
    global _BENCH
    _BENCH = _BENCH or Bench(device, exclusive)
    return _BENCH


def _measure_in_worker(job: Job, batch_size: int, device: str, out: Path, exclusive: bool) -> str:
    return _measure_and_report(job, process_bench(device, exclusive), batch_size, out)


def _measure_and_report(job: Job, bench: Bench, batch_size: int, out: Path) -> str:
    """Measure a job and return a line of text about it."""
    start = time.perf_counter()
    records = list(measure(bench, job, batch_size, out))
    seconds = time.perf_counter() - start
    scores = [record.score for record in records if isinstance(record, Answer)]
    mean = f"{sum(scores) / len(scores):.3f}" if scores else ""
    return f"{job.model} | {job.split} | {job.arm} | {mean} | {len(records)} in {seconds:.0f} s"


def run(
    wanted: Sequence[Job],
    batch_size: int,
    device: str,
    workers: int,
    out: Path,
    options: EngineOptions = EngineOptions(),
) -> None:
    """Measure the jobs and print a line about each."""
    if options.engine != LOCAL:
        shared = Bench(device, False, options)
        try:
            for job in sorted(wanted, key=lambda job: MODELS.index(job.model)):
                print(_measure_and_report(job, shared, batch_size, out), flush=True)
        finally:
            shared.close()
        return
    for line in run_jobs(_measure_in_worker, wanted, batch_size, device, workers, out):
        print(line, flush=True)


def run_jobs(
    measure_job: Callable[..., Value], wanted: Sequence[Job], batch_size: int, device: str, workers: int, out: Path
) -> Iterator[Value]:
    """Yield the result of each job, with several workers in parallel; a worker keeps its model where possible.

    A single worker runs in this process and takes one model after the other.
    """
    if workers == 1:
        for job in sorted(wanted, key=lambda job: MODELS.index(job.model)):
            yield measure_job(job, batch_size, device, out, exclusive=True)
        return
    context = get_context("spawn")  # a forked worker cannot use a GPU that its parent has used
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(workers)]
    turns: dict[str, int] = {}
    futures = []
    for job in wanted:
        # Each model has its workers, which take its jobs in turn. Jobs that read the journal of the survival arm go
        # to the worker that writes it, after that arm.
        home = MODELS.index(job.model) % workers
        of_model = [worker for worker in range(workers) if worker % len(MODELS) == home]
        turn = turns[job.model] = turns.get(job.model, -1) + 1
        needs_survival = job.arm in ("survival", FIXED_MEAN, FIXED_MEANS)
        worker = of_model[0] if needs_survival else of_model[turn % len(of_model)]
        futures.append(pools[worker].submit(measure_job, job, batch_size, device, out, False))
    for future in as_completed(futures):
        yield future.result()


def keep_all(raw: Path, kept: Path) -> None:
    """Write the complete arms of the raw records to a file per model."""
    records = read_records(raw)
    for model in dict.fromkeys(record.model for record in records):
        arms = complete_arms((record for record in records if record.model == model), shipped(model))
        written = keep([record for arm in arms.values() for record in arm], kept)
        for kind, split, recipe in written:
            print(f"{file_of(kept, model)}: {kind}, {split}, {recipe.label()}")


def complete_arms(records: Iterable[Record], weights: str) -> Arms:
    """Return the complete arms of these weights.

    Short prompts are answered first, so the records of an interrupted arm are a biased sample.
    """
    arms = by_arm(record for record in records if record.weights == weights)
    return {key: arm for key, arm in arms.items() if _is_complete(arm)}


def _is_complete(records: Sequence[Record]) -> bool:
    """Return whether the records are the first prompts of every task, equally many of each, without duplicates."""
    indices: dict[str, list[int]] = {}
    for record in records:
        indices.setdefault(record.task, []).append(record.index)
    return (
        len({len(of_task) for of_task in indices.values()}) == 1
        and (len(indices) == len(BENCHMARKS) or _may_be_task_mean(records[0].recipe))
        and all(sorted(of_task) == list(range(len(of_task))) for of_task in indices.values())
    )


def _may_be_task_mean(recipe: Recipe) -> bool:
    """Return whether a recipe may be the fixed canvas of one task's mean, which only that task has."""
    return isinstance(recipe.length, Fixed) and (recipe.length.slots or SLOTS) < SLOTS


@lru_cache(maxsize=len(MODELS))
def shipped(model: str) -> str:
    """Return the fingerprint of the embedded weights."""
    return fingerprint(lastword.load(model, device="cpu"))


def missing(wanted: Sequence[Job], kept: Path) -> list[Job]:
    """Return the jobs that the kept records lack for the current weights."""
    kept_arms: dict[str, Arms] = {}
    for model in {job.model for job in wanted}:
        arms = read_arms(kept, model)
        weights = shipped(model) if arms else ""
        kept_arms[model] = {key: arm for key, arm in arms.items() if arm[0].weights == weights}
    return [job for job in wanted if not _has(kept_arms[job.model], job)]


def _has(arms: Arms, job: Job) -> bool:
    """Return whether the arms contain all answers of a job."""

    def has(recipe: Recipe, kind: str = "answer", tasks: Sequence[str] = BENCHMARKS) -> bool:
        records = arms.get((kind, job.split, recipe), [])
        return all(sum(record.task == task for record in records) >= job.per_family for task in tasks)

    if job.arm not in (FIXED_MEAN, FIXED_MEANS, DRIFT):
        return has(recipe_of(job.arm))
    survival = recipe_of("survival")
    if job.arm == DRIFT:
        return has(survival, "drift")
    records = arms.get(("answer", job.split, survival), [])
    predictions = [record for record in records if isinstance(record, Answer)]
    if not predictions:
        return False
    if job.arm == FIXED_MEAN:
        return has(fixed_at(predictions))
    by_task = {task: [record for record in predictions if record.task == task] for task in BENCHMARKS}
    return all(of_task and has(fixed_at(of_task), tasks=[task]) for task, of_task in by_task.items())


def main() -> None:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure groups of arms")
    runs.add_argument("--arms", nargs="+", default=["paper"], help=", ".join(GROUPS))
    runs.add_argument("--models", nargs="+", default=[])
    runs.add_argument("--per-family", type=int, help="prompts per family; default: that of the group")
    runs.add_argument("--batch-size", type=int, default=500, help="prompts decoded at the same time")
    runs.add_argument("--workers", type=int, default=1, help="worker processes; answers are timed with 1")
    runs.add_argument("--engine", default=LOCAL, choices=(LOCAL, PROCESSES, RAY))
    runs.add_argument("--address", help="address of a Ray cluster")
    runs.add_argument("--device", default="auto")
    runs.add_argument("--out", type=Path, default=RAW)
    runs.add_argument("--kept", type=Path, default=RECORDS, help="arms in these records are not measured again")
    keeps = commands.add_parser("keep", help="write the complete arms of raw records to a file per model")
    keeps.add_argument("--raw", type=Path, default=RAW)
    keeps.add_argument("--kept", type=Path, default=RECORDS)
    commands.add_parser("list", help="list arms and groups")
    options = parser.parse_args()
    if options.command == "run":
        wanted = missing(jobs(options.arms, options.per_family, options.models), options.kept)
        engine_workers = None if options.engine == LOCAL else options.workers
        engine = EngineOptions(options.engine, engine_workers, address=options.address)
        run(wanted, options.batch_size, options.device, options.workers, options.out, engine)
    elif options.command == "keep":
        keep_all(options.raw, options.kept)
    else:
        for name, group in GROUPS.items():
            print(f"{name}: {len(group.arms)} arms x {len(group.models)} models, {group.split}, ", end="")
            print(f"{group.per_family} prompts per family")
            print(*(f"    {arm}" for arm in group.arms), sep="\n")


if __name__ == "__main__":
    main()
