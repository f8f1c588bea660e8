"""Everything we measure by decoding, on the embedded models: `arms` lists it.

    python -m benchmarks.study run --arms paper              the paper's tables (a GPU for all of it)
    python -m benchmarks.study run --arms lengths            every length
    python -m benchmarks.study run --arms parts --workers 1  every decoding part, with its seconds
    python -m benchmarks.study run --arms confirm peers      the default on prompts nobody had looked at
    python -m benchmarks.study run --arms lengths --engine ray --address auto --workers 8
    python -m benchmarks.study keep                          the records, small enough to commit
    python -m benchmarks.study list                          arms and groups

A run that is killed resumes, and what the kept records hold is not measured again. Several workers alone take
an arm each; those of an engine (processes, ray) share the prompts of one arm after the other, and
drift, which looks at every step, stays in this process.
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
SEEN = 500
FRESH_PROMPTS = 200  # of each family
WARM_UP = 64  # prompts that are asked before a recipe's seconds count


class Unseen(EmbeddedTask):
    """The frozen test prompts of a family that no table was made of while there was something to choose."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.split, self.examples = UNSEEN, self.examples[SEEN:]


class Fresh(EmbeddedTask):
    """Prompts of a family that are not frozen, the same ones every time."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.split, self.examples = FRESH, fresh(family)


@cache
def fresh(family: str) -> tuple[Example, ...]:
    """Return test prompts of another seed than the frozen ones."""
    frozen = {example.prompt for example in load_frozen("test", family)}
    made = (e for e in example_stream("test", family, SEED) if e.prompt not in frozen)
    return tuple(islice(made, FRESH_PROMPTS))


@dataclass(frozen=True)
class Job:
    """An arm on a model."""

    model: str
    arm: str
    split: str
    per_family: int
    apart: bool = False


def jobs(groups: Sequence[str], per_family: int | None, models: Sequence[str]) -> list[Job]:
    """Return the jobs of the groups, each once; arms before models, so that several workers share them."""
    for what, given, known in (("group", groups, GROUPS), ("model", models, MODELS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise SettingError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")
    asked = [
        Job(model, arm, group.split, per_family or group.per_family, group.apart)
        for group in (GROUPS[name] for name in groups)
        for arm in group.arms
        for model in group.models
        if not models or model in models
    ]
    return list(dict.fromkeys(asked))


def fuse(backend: str = "inductor") -> None:
    """Compile norms and rotations for every model of this process.

    They are bound by memory. Compiled they round once instead of twice: the last bit of a logit may differ.
    """
    for owner, name in ((layers.RMSNorm, "forward"), (layers, "rotate")):
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=True, backend=backend))


class Bench:
    """A worker's model and tasks, loaded once: most of its jobs are about one model."""

    def __init__(self, device: str, alone: bool, options: EngineOptions = EngineOptions()) -> None:
        self.alone = alone  # nothing else runs, so that seconds mean something
        self.options = options
        self.engine: Engine | None = None  # None: this process
        self._name = ""
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if self.device == "cuda" and not alone:
            fuse()  # compiles anew for shapes it has not met: faster in all, and no second to go by
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
            self._tasks.clear()  # scores are remembered by answer; another model answers otherwise
            self.warm_up(Recipe(length=Fixed(16)), 16 if self.device == "cuda" else 1)
        return self.model

    def close(self) -> None:
        """End the workers of an engine."""
        if self.engine is not None:
            self.engine.close()
            self.engine, self._name = None, ""

    def warm_up(self, recipe: Recipe, rows: int) -> None:
        """Decode once: kernels are chosen and memory is allocated on first use."""
        warm = Journal(RAW / f"warm-up.{os.getpid()}.jsonl")
        tasks = embedded_tasks(["algebra"], "validation")
        evaluate(self.model, self._name, tasks, recipe, warm, limit=rows, max_batch_size=rows)
        warm.path.unlink()

    def tasks(self, split: str) -> list[Any]:
        if split not in self._tasks:
            own = {UNSEEN: Unseen, FRESH: Fresh}.get(split)
            self._tasks[split] = [*map(own, BENCHMARKS)] if own else embedded_tasks(split=split)
        return self._tasks[split]


def measure(bench: Bench, job: Job, rows: int, out: Path) -> Iterator[Record]:
    """The records of a job."""
    model, tasks = bench.use(job.model), bench.tasks(job.split)

    def ask(tasks: Sequence[Task], recipe: Recipe) -> list[Answer]:
        journal = _journal(out, job.model, job.split, recipe)
        if bench.alone and bench.device == "cuda":
            bench.warm_up(recipe, min(rows, WARM_UP))
        return [
            record
            for batch in ([[task] for task in tasks] if job.apart else [tasks])
            for record in evaluate(
                model, job.model, batch, recipe, journal,
                limit=job.per_family, max_batch_size=rows, timed=bench.alone, engine=bench.engine,
            )
        ]  # fmt: skip

    if job.arm == DRIFT:
        journal = Journal(out / f"{job.model}.{job.split}.{DRIFT}.jsonl")
        if bench.engine is not None:
            model = lastword.load(job.model, device=bench.device)
        yield from drift(
            model, job.model, tasks, journal,
            length=Survival(SLOTS), limit=job.per_family, max_batch_size=rows,
        )  # fmt: skip
    elif job.arm == FIXED_MEAN:
        yield from ask(tasks, fixed_at(ask(tasks, recipe_of("survival"))))
    elif job.arm == FIXED_MEANS:
        for task in tasks:
            yield from ask([task], fixed_at(ask([task], recipe_of("survival"))))
    else:
        yield from ask(tasks, recipe_of(job.arm))


def fixed_at(records: Sequence[Answer]) -> Recipe:
    """The fixed canvas that spends as much as these predictions and knows nothing of the prompt."""
    return Recipe.named("fixed").with_choices(length=Fixed(mean_slots(records)))


def _journal(out: Path, model: str, split: str, recipe: Recipe) -> Journal:
    """Return the journal of a model and recipe, which one worker writes."""
    digest = sha256(recipe.to_json().encode()).hexdigest()[:12]
    return Journal(out / f"{model}.{split}.{digest}.jsonl")


_BENCH: Bench | None = None


def bench(device: str, alone: bool) -> Bench:
    """The one of this process."""
    global _BENCH
    _BENCH = _BENCH or Bench(device, alone)
    return _BENCH


def _measured(job: Job, rows: int, device: str, out: Path, alone: bool) -> str:
    return _said(job, bench(device, alone), rows, out)


def _said(job: Job, bench: Bench, rows: int, out: Path) -> str:
    """Measure a job, and what to say of it."""
    began = time.perf_counter()
    records = list(measure(bench, job, rows, out))
    took = time.perf_counter() - began
    right = [record.score for record in records if isinstance(record, Answer)]
    share = f"{sum(right) / len(right):.3f}" if right else ""
    return f"{job.model} | {job.split} | {job.arm} | {share} | {len(records)} in {took:.0f} s"


def run(
    wanted: Sequence[Job], rows: int, device: str, workers: int, out: Path, options: EngineOptions = EngineOptions()
) -> None:
    """Measure the jobs and say what came."""
    if options.engine != LOCAL:
        shared = Bench(device, False, options)
        try:
            for job in sorted(wanted, key=lambda job: MODELS.index(job.model)):
                print(_said(job, shared, rows, out), flush=True)
        finally:
            shared.close()
        return
    for line in each(_measured, wanted, rows, device, workers, out):
        print(line, flush=True)


def each(
    measured: Callable[..., Value], wanted: Sequence[Job], rows: int, device: str, workers: int, out: Path
) -> Iterator[Value]:
    """Yield the result of each job, several workers at a time; a worker stays with a model where it can.

    One worker alone takes model after model.
    """
    if workers == 1:
        for job in sorted(wanted, key=lambda job: MODELS.index(job.model)):
            yield measured(job, rows, device, out, alone=True)
        return
    context = get_context("spawn")  # a forked worker cannot use a GPU its parent has touched
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(workers)]
    turns: dict[str, int] = {}
    futures = []
    for job in wanted:
        # Models over workers, and a model's jobs in turn over those that are its own; those that read the
        # survival arm's journal go where that is written, behind it.
        home = MODELS.index(job.model) % workers
        own = [worker for worker in range(workers) if worker % len(MODELS) == home]
        turn = turns[job.model] = turns.get(job.model, -1) + 1
        reads = job.arm in ("survival", FIXED_MEAN, FIXED_MEANS)
        worker = own[0] if reads else own[turn % len(own)]
        futures.append(pools[worker].submit(measured, job, rows, device, out, False))
    for future in as_completed(futures):
        yield future.result()


def keep_all(raw: Path, kept: Path) -> None:
    """Keep the complete arms of the raw records in a file per model."""
    records = read_records(raw)
    for model in dict.fromkeys(record.model for record in records):
        arms = whole_arms((record for record in records if record.model == model), shipped(model))
        written = keep([record for arm in arms.values() for record in arm], kept)
        for kind, split, recipe in written:
            print(f"{file_of(kept, model)}: {kind}, {split}, {recipe.label()}")


def whole_arms(records: Iterable[Record], weights: str) -> Arms:
    """Return the complete arms of these weights.

    Short prompts are answered first, so the records of an interrupted arm are not a fair sample.
    """
    arms = by_arm(record for record in records if record.weights == weights)
    return {key: arm for key, arm in arms.items() if _whole(arm)}


def _whole(records: Sequence[Record]) -> bool:
    """Return whether the records are the first prompts of every task, equally many of each, and each once."""
    asked: dict[str, list[int]] = {}
    for record in records:
        asked.setdefault(record.task, []).append(record.index)
    counts = {len(own) for own in asked.values()}
    return (
        len(counts) == 1
        and (len(asked) == len(BENCHMARKS) or _may_be_a_mean(records[0].recipe))
        and all(sorted(own) == list(range(len(own))) for own in asked.values())
    )


def _may_be_a_mean(recipe: Recipe) -> bool:
    """Return whether a recipe may be a fixed canvas of one task's mean, which only that task has."""
    return isinstance(recipe.length, Fixed) and (recipe.length.slots or SLOTS) < SLOTS


@lru_cache(maxsize=len(MODELS))
def shipped(model: str) -> str:
    """Return the fingerprint of the weights in the package."""
    return fingerprint(lastword.load(model, device="cpu"))


def left(wanted: Sequence[Job], kept: Path) -> list[Job]:
    """Return the jobs that the kept records lack for the current weights."""
    held: dict[str, Arms] = {}
    for model in {job.model for job in wanted}:
        arms = read_arms(kept, model)
        weights = shipped(model) if arms else ""
        held[model] = {key: arm for key, arm in arms.items() if arm[0].weights == weights}
    return [job for job in wanted if not _holds(held[job.model], job)]


def _holds(arms: Arms, job: Job) -> bool:
    def has(recipe: Recipe, kind: str = "answer", tasks: Sequence[str] = BENCHMARKS) -> bool:
        mine = arms.get((kind, job.split, recipe), [])
        return all(sum(r.task == task for r in mine) >= job.per_family for task in tasks)

    if job.arm not in (FIXED_MEAN, FIXED_MEANS, DRIFT):
        return has(recipe_of(job.arm))
    survival = recipe_of("survival")
    if job.arm == DRIFT:
        return has(survival, "drift")
    records = arms.get(("answer", job.split, survival), [])
    found = [record for record in records if isinstance(record, Answer)]
    if not found:
        return False
    if job.arm == FIXED_MEAN:
        return has(fixed_at(found))
    own = {task: [r for r in found if r.task == task] for task in BENCHMARKS}
    return all(mine and has(fixed_at(mine), tasks=[task]) for task, mine in own.items())


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure groups of arms")
    runs.add_argument("--arms", nargs="+", default=["paper"], help=", ".join(GROUPS))
    runs.add_argument("--models", nargs="+", default=[])
    runs.add_argument("--per-family", type=int, help="prompts of each family; default: the group's")
    runs.add_argument("--rows", type=int, default=500, help="prompts decoded at once")
    runs.add_argument("--workers", type=int, default=1)
    runs.add_argument("--engine", default=LOCAL, choices=(LOCAL, PROCESSES, RAY))
    runs.add_argument("--address", help="of a Ray cluster")
    runs.add_argument("--device", default="auto")
    runs.add_argument("--out", type=Path, default=RAW)
    runs.add_argument("--kept", type=Path, default=RECORDS, help="what it holds is not asked again")
    keeps = commands.add_parser("keep", help="keep the complete arms of raw records, a file per model")
    keeps.add_argument("--raw", type=Path, default=RAW)
    keeps.add_argument("--kept", type=Path, default=RECORDS)
    commands.add_parser("list", help="arms and groups")
    given = parser.parse_args()
    if given.command == "run":
        wanted = left(jobs(given.arms, given.per_family, given.models), given.kept)
        several = None if given.engine == LOCAL else given.workers
        options = EngineOptions(given.engine, several, address=given.address)
        run(wanted, given.rows, given.device, given.workers, given.out, options)
    elif given.command == "keep":
        keep_all(given.raw, given.kept)
    else:
        for name, group in GROUPS.items():
            print(f"{name}: {len(group.arms)} arms x {len(group.models)} models, {group.split}, ", end="")
            print(f"{group.per_family} prompts a family")
            print(*(f"    {arm}" for arm in group.arms), sep="\n")


if __name__ == "__main__":
    main()
