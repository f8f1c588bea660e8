"""Everything we measure by decoding, on the embedded models: one list of arms, one file of records a model.

    python -m benchmarks.study run --arms paper              the paper's tables (a GPU for all of it)
    python -m benchmarks.study run --arms lengths            every length
    python -m benchmarks.study run --arms parts --workers 1  every decoding part, with its seconds
    python -m benchmarks.study run --arms confirm peers      the default on prompts nobody had looked at
    python -m benchmarks.study keep                          the records, small enough to commit
    python -m benchmarks.study list                          arms and groups

A run that is killed resumes, and what the kept records hold is not measured again. "Alone" changes one axis
of the plain recipe (fixed canvas of 256 slots, one token a pass); no canvas has more than 256 slots.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import lastword
from lastword.errors import SettingError
from lastword.eval import Journal, Task, drift, evaluate, tiny_tasks
from lastword.eval.archive import keep
from lastword.eval.journal import Record, read_records
from lastword.eval.tiny import TinyTask
from lastword.length import Survival
from lastword.models.layers import fuse
from lastword.models.weights import fingerprint
from lastword.paper.arms import mean_slots
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS

RECORDS = Path(__file__).parent / "records" / "study"
RAW = Path("out/study")
BASE = ("tiny-llada-base", "tiny-dream-base")
MODELS = (*BASE, "tiny-llada-instruct", "tiny-dream-instruct")

PLAIN = {"length": "fixed:256"}
SURVIVAL = {"length": "survival:256"}
BLOCK = {"block": 32}
THRESHOLD = {"unmask": "threshold:0.9", **BLOCK}
AUTO = {"name": "survival", "limit": 256, "reading": "auto"}
FEATURE = "feature:25,response_interval=5,share=0.25"


def _auto(estimate: str, *, reread: bool = False, grow: bool = False) -> dict[str, Any]:
    length: dict[str, Any] = {**AUTO, "estimate": estimate}
    if reread:
        length = {"name": "reread", "length": length}
    if grow:
        length = {"name": "grow-when-full", "length": length, "limit": 256}
        length = {"name": "stop-at-end", "length": length}
    return {"length": length, **(BLOCK if reread or grow else {})}


ARMS: dict[str, dict[str, Any]] = {
    "fixed 256": PLAIN,
    # how long: the paper, its peers, plain baselines
    "survival": SURVIVAL,
    "fixed 64": {"length": "fixed:64"},
    "fixed 96": {"length": "fixed:96"},
    "fixed 128": {"length": "fixed:128"},
    "fixed 192": {"length": "fixed:192"},
    "stop at end": {"length": "stop-at-end:fixed:256", **BLOCK},
    "DAEDAL": {"length": {"name": "daedal", "limit": 256}, **THRESHOLD},
    "rho-EOS": {"length": {"name": "rho-eos", "limit": 256}, **THRESHOLD},
    "rho-EOS, released signal": {
        "length": {"name": "rho-eos", "limit": 256, "signal": "released"}, **THRESHOLD
    },
    "DAEDAL, one token a pass": {"length": {"name": "daedal", "limit": 256}, **BLOCK},
    "rho-EOS, one token a pass": {"length": {"name": "rho-eos", "limit": 256}, **BLOCK},
    "survival, blocks": {**SURVIVAL, **BLOCK},
    # how long: ours
    "auto": _auto("mean"),
    "auto, quantile 0.9": _auto("quantile:0.9"),
    "auto, quantile 0.95": _auto("quantile:0.95"),
    "auto, cheapest 1000": _auto("cheapest:1000.0"),
    "auto, grow, stop": _auto("mean", grow=True),
    "auto, quantile 0.9, grow, stop": _auto("quantile:0.9", grow=True),
    "auto, reread": _auto("mean", reread=True),
    "auto, reread, grow, stop": _auto("mean", reread=True, grow=True),
    "auto, quantile 0.9, reread, grow, stop": _auto("quantile:0.9", reread=True, grow=True),
    "secant": {"length": {"name": "secant", "limit": 256}},
    "survival, quantile 0.9": {"length": "survival:256,estimate=quantile:0.9"},
    "survival at step 32": {
        "length": {"name": "survival-at-step", "step": 32, "length": "survival:256"}
    },
    "survival, grow when full": {
        "length": {"name": "grow-when-full", "length": "survival:256", "limit": 256},
        **BLOCK,
    },
    # which masks
    "largest margin": {**PLAIN, "unmask": "largest-margin"},
    "lowest entropy": {**PLAIN, "unmask": "lowest-entropy"},
    "at random": {**PLAIN, "unmask": "at-random"},
    "coin flip": {**PLAIN, "unmask": "coin-flip"},
    "two tokens a pass": {**PLAIN, "unmask": "most-confident:2"},
    "threshold 0.9": {**PLAIN, **THRESHOLD},
    "leftmost first, threshold 0.9": {
        **PLAIN, "unmask": {"name": "leftmost-first", "unmask": "threshold:0.9"}, **BLOCK
    },
    "factor 1": {**PLAIN, "unmask": "factor:1.0", **BLOCK},
    "entropy bound 0.1": {**PLAIN, "unmask": "entropy-bound:0.1"},
    "entropy bound 0.1, by confidence": {
        **PLAIN, "unmask": "entropy-bound:0.1,order=confidence"
    },
    "entropy bound 0.1, by margin": {**PLAIN, "unmask": "entropy-bound:0.1,order=margin"},
    "SlowFast": {**PLAIN, "unmask": "slow-fast"},
    "MaskGIT, cosine, two a pass": {**PLAIN, "unmask": "maskgit:cosine:2.0"},
    # when to stop refining
    "Prophet": {**PLAIN, "commit": "prophet"},
    "stable margin": {**PLAIN, "commit": "stable-margin"},
    # what to recompute
    "prefix cache": {**PLAIN, "cache": "prefix", **BLOCK},
    "dual cache": {**PLAIN, "cache": "dual", **BLOCK},
    "feature cache": {**PLAIN, "cache": FEATURE},
    # together
    "survival + two tokens a pass": {**SURVIVAL, "unmask": "most-confident:2"},
    "survival + threshold": {**SURVIVAL, **THRESHOLD},
    "survival + factor": {**SURVIVAL, "unmask": "factor:1.0", **BLOCK},
    "survival + entropy bound": {**SURVIVAL, "unmask": "entropy-bound:0.1"},
    "survival + SlowFast": {**SURVIVAL, "unmask": "slow-fast"},
    "survival + Prophet": {**SURVIVAL, "commit": "prophet"},
    "survival + stable margin": {**SURVIVAL, "commit": "stable-margin"},
    "survival + dual cache": {**SURVIVAL, "cache": "dual", **BLOCK},
    "survival + threshold + prefix cache": {**SURVIVAL, **THRESHOLD, "cache": "prefix"},
    "survival + threshold + dual cache": {**SURVIVAL, **THRESHOLD, "cache": "dual"},
    "survival + threshold + feature cache": {**SURVIVAL, **THRESHOLD, "cache": FEATURE},
    "auto + threshold": {**_auto("mean"), **THRESHOLD},
    "auto, grow, stop + threshold": {**_auto("mean", grow=True), **THRESHOLD},
    "auto, reread, grow, stop + threshold": {
        **_auto("mean", reread=True, grow=True), **THRESHOLD
    },
    "auto, grow, stop + threshold + dual cache": {
        **_auto("mean", grow=True), **THRESHOLD, "cache": "dual"
    },
    "auto, grow, stop + dual cache": {**_auto("mean", grow=True), "cache": "dual"},
    "stop at end + threshold": {"length": "stop-at-end:fixed:256", **THRESHOLD},
    "stop at end + threshold + dual cache": {
        "length": "stop-at-end:fixed:256", **THRESHOLD, "cache": "dual"
    },
}  # fmt: skip
FIXED_MEANS = "fixed at each task's mean"  # of the survival arm's predictions: the paper's Table 3
FIXED_MEAN = "fixed at the mean"  # one number for all tasks
DRIFT = "drift"  # no arm: the expected length at later steps, the paper's Table 6
UNSEEN = "unseen"  # a split: the frozen test prompts behind the first 500, asked once the default was set
SEEN = 500
WARM_UP = 64  # prompts that are asked before a recipe's seconds count


class Unseen(TinyTask):
    """The frozen test prompts of a family that no table was made of while there was something to choose."""

    def __init__(self, family: str) -> None:
        super().__init__(family)
        self.split, self._examples = UNSEEN, self._examples[SEEN:]


@dataclass(frozen=True)
class Group:
    """Arms that are measured on the same models and prompts."""

    arms: tuple[str, ...]
    models: tuple[str, ...] = MODELS
    split: str = "test"
    per_family: int = 500
    apart: bool = False  # a batch holds prompts of one task, so that its seconds are that task's


_PAPER = ("fixed 256", "survival", FIXED_MEANS, FIXED_MEAN, DRIFT, "stop at end", "DAEDAL")
_LENGTHS = ("auto", *(title for title in ARMS if title.startswith("auto,") and "+" not in title))
_PEERS = ("DAEDAL, one token a pass", "rho-EOS", "rho-EOS, one token a pass")
_THRESHOLD = (
    "survival + threshold", "auto + threshold", "auto, grow, stop + threshold",
    "auto, reread, grow, stop + threshold", "auto, grow, stop + threshold + dual cache",
    "auto, grow, stop + dual cache",
    "stop at end + threshold", "stop at end + threshold + dual cache",
)  # fmt: skip
_DEFAULT = "auto, grow, stop"
# Every part alone, with the paper's length and in the default; not each way to read a length.
_APART = {*_LENGTHS, *_PEERS, *_THRESHOLD, *(title for title in ARMS if title.startswith("fixed "))}
_PARTS = tuple(
    title for title in ARMS
    if title not in _APART
    or title in ("fixed 256", "auto", "rho-EOS", _DEFAULT, "survival + threshold")
    or title.startswith((f"{_DEFAULT} +", "stop at end +"))
)  # fmt: skip
GROUPS = {
    "paper": Group(_PAPER, apart=True),
    "choose": Group(("fixed 256", "survival", *_LENGTHS, *_THRESHOLD), MODELS, "validation", 300),
    "lengths": Group((*_LENGTHS, *_PEERS, *_THRESHOLD)),
    "beyond": Group(("fixed 64", "fixed 96", "fixed 128", "fixed 192", _DEFAULT)),  # Table 7
    "confirm": Group(
        ("fixed 256", "survival", _DEFAULT, f"{_DEFAULT} + dual cache"), MODELS, UNSEEN, 700
    ),
    "peers": Group(
        (*_PEERS, "DAEDAL", f"{_DEFAULT} + threshold"), MODELS[len(BASE) :], UNSEEN, 700
    ),
    # Seconds want a machine of their own: one worker, --out and --kept apart.
    "speed": Group(
        (
            "fixed 256", "survival", "DAEDAL", _DEFAULT, f"{_DEFAULT} + threshold",
            f"{_DEFAULT} + threshold + dual cache",
        ),
        apart=True,
    ),
    "parts": Group(_PARTS, BASE, per_family=300),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One arm on one model."""

    model: str
    arm: str
    split: str
    per_family: int
    apart: bool = False


def recipe_of(arm: str) -> Recipe:
    """The recipe of an arm. One that composition refuses is an error here: the list is ours."""
    if arm not in ARMS:
        raise SettingError(f"there is no arm {arm!r}; known: {'; '.join(ARMS)}")
    return Recipe.from_json(json.dumps(ARMS[arm]))


def jobs(groups: Sequence[str], per_family: int | None, models: Sequence[str]) -> list[Job]:
    """What the groups ask for, each once; arms before models, so that several workers share them out."""
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


class Bench:
    """A worker's model and tasks, loaded once: most of its jobs are about one model."""

    def __init__(self, device: str, alone: bool) -> None:
        self.alone = alone  # nothing else runs, so that seconds mean something
        self._name = ""
        self.device = (
            ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        )
        if self.device == "cuda" and not alone:
            fuse()  # compiles anew for shapes it has not met: faster in all, and no second to go by
        self._tasks: dict[str, list[Any]] = {}
        self.model: Any = None

    def use(self, name: str) -> Any:
        if name != self._name:
            self.model, self._name = lastword.load(name, device=self.device), name
            self._tasks.clear()  # scores are remembered by answer; another model answers otherwise
            self.warm_up(Recipe(length=lastword.Fixed(16)), 16 if self.device == "cuda" else 1)
        return self.model

    def warm_up(self, recipe: Recipe, rows: int) -> None:
        """Kernels are chosen on first use, and memory is asked for."""
        warm = Journal(RAW / f"warm-up.{os.getpid()}.jsonl")
        tasks = tiny_tasks(["algebra"], "validation")
        evaluate(self.model, self._name, tasks, recipe, warm, limit=rows, rows=rows)
        warm.path.unlink()

    def tasks(self, split: str) -> list[Any]:
        if split not in self._tasks:
            unseen = split == UNSEEN
            self._tasks[split] = [*map(Unseen, BENCHMARKS)] if unseen else tiny_tasks(split=split)
        return self._tasks[split]


def measure(bench: Bench, job: Job, rows: int, out: Path) -> Iterator[Record]:
    """The records of a job."""
    model, tasks = bench.use(job.model), bench.tasks(job.split)

    def ask(tasks: Sequence[Task], recipe: Recipe) -> list[Record]:
        journal = _journal(out, job.model, job.split, recipe)
        if bench.alone and bench.device == "cuda":
            bench.warm_up(recipe, min(rows, WARM_UP))
        return [
            record
            for batch in ([[task] for task in tasks] if job.apart else [tasks])
            for record in evaluate(
                model, job.model, batch, recipe, journal,
                limit=job.per_family, rows=rows, timed=bench.alone,
            )
        ]  # fmt: skip

    if job.arm == DRIFT:
        journal = Journal(out / f"{job.model}.{job.split}.{DRIFT}.jsonl")
        yield from drift(
            model, job.model, tasks, journal,
            length=Survival(256), limit=job.per_family, rows=rows,
        )  # fmt: skip
    elif job.arm == FIXED_MEAN:
        yield from ask(tasks, fixed_at(ask(tasks, recipe_of("survival"))))
    elif job.arm == FIXED_MEANS:
        for task in tasks:
            yield from ask([task], fixed_at(ask([task], recipe_of("survival"))))
    else:
        yield from ask(tasks, recipe_of(job.arm))


def fixed_at(records: Sequence[Record]) -> Recipe:
    """The fixed canvas that spends as much as these predictions and knows nothing of the prompt."""
    return Recipe(length=lastword.Fixed(mean_slots(records)))


def _journal(out: Path, model: str, split: str, recipe: Recipe) -> Journal:
    """Of its own for every model and recipe: one worker writes it."""
    digest = sha256(recipe.to_json().encode()).hexdigest()[:12]
    return Journal(out / f"{model}.{split}.{digest}.jsonl")


_BENCH: Bench | None = None


def _measured(job: Job, rows: int, device: str, out: Path, alone: bool) -> str:
    global _BENCH
    _BENCH = _BENCH or Bench(device, alone)
    began = time.perf_counter()
    records = list(measure(_BENCH, job, rows, out))
    took = time.perf_counter() - began
    right = [record["score"] for record in records if "score" in record]
    share = f"{sum(right) / len(right):.3f}" if right else ""
    return f"{job.model} | {job.split} | {job.arm} | {share} | {len(records)} in {took:.0f} s"


def run(wanted: Sequence[Job], rows: int, device: str, workers: int, out: Path) -> None:
    """Measure the jobs, several workers at a time; every worker keeps to one model where it can.

    One worker alone takes model after model.
    """
    if workers == 1:
        for job in sorted(wanted, key=lambda job: MODELS.index(job.model)):
            print(_measured(job, rows, device, out, alone=True), flush=True)
        return
    context = get_context("spawn")  # a forked worker cannot use a GPU its parent has touched
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(workers)]
    turns: dict[str, int] = {}
    futures = []
    for job in wanted:
        # Models over workers, and a model's jobs in turn over those that are its own; those that read the
        # survival arm's journal go where that is written, behind it.
        home = MODELS.index(job.model) % workers
        own = [place for place in range(workers) if place % len(MODELS) == home]
        turn = turns[job.model] = turns.get(job.model, -1) + 1
        place = own[0] if job.arm in ("survival", FIXED_MEAN, FIXED_MEANS) else own[turn % len(own)]
        futures.append(pools[place].submit(_measured, job, rows, device, out, False))
    for future in as_completed(futures):
        print(future.result(), flush=True)


def keep_all(raw: Path, kept: Path) -> None:
    """Merge the raw records into the kept ones, a file a model, without texts."""
    fresh: dict[str, list[Record]] = {}
    for record in read_records(raw):
        fresh.setdefault(record["model"], []).append(record)
    for model, mine in fresh.items():
        path = kept / f"{model}.jsonl.gz"
        before = read_records(path) if path.exists() else []
        merged = merge(before, mine, shipped(model))
        keep(merged, path)
        print(f"{path}: {len(merged)} records, {path.stat().st_size // 1024} KiB")


def merge(before: Sequence[Record], fresh: Sequence[Record], weights: str) -> list[Record]:
    """Arms of these weights; fresh ones replace kept ones where they are whole and ask no less.

    Short prompts go first, so an arm that was stopped half-way is no sample of anything.
    """
    arms: dict[str, list[Record]] = {}
    for records in (before, fresh):
        for arm, mine in _by_arm(r for r in records if r["weights"] == weights).items():
            if _whole(mine) and len(mine) >= len(arms.get(arm, ())):
                arms[arm] = mine
    return [record for mine in arms.values() for record in mine]


def _by_arm(records: Iterable[Record]) -> dict[str, list[Record]]:
    arms: dict[str, list[Record]] = {}
    for record in records:
        arms.setdefault(_arm(record["kind"], record["split"], record["recipe"]), []).append(record)
    return arms


def _arm(kind: str, split: str, recipe: object) -> str:
    return json.dumps([kind, split, recipe], sort_keys=True)


def _whole(records: Sequence[Record]) -> bool:
    """The first so many prompts of every task it is asked of, as many of each, and each once."""
    places: dict[str, list[int]] = {}
    for record in records:
        places.setdefault(record["task"], []).append(record["place"])
    counts = {len(own) for own in places.values()}
    return (
        len(counts) == 1
        and (len(places) == len(BENCHMARKS) or _may_be_a_mean(records[0]["recipe"]))
        and all(sorted(own) == list(range(len(own))) for own in places.values())
    )


def _may_be_a_mean(recipe: Record) -> bool:
    """A fixed canvas of some task's mean is asked of that task alone."""
    length = recipe["length"]
    return length["name"] == "fixed" and length["slots"] < 256


@lru_cache(maxsize=len(MODELS))
def shipped(model: str) -> str:
    """What the weights in the package are known by."""
    return fingerprint(lastword.load(model, device="cpu"))


def left(wanted: Sequence[Job], kept: Path) -> list[Job]:
    """The jobs the kept records do not hold yet, for the weights as they are now."""
    held: dict[str, dict[str, list[Record]]] = {}
    for model in {job.model for job in wanted}:
        path = kept / f"{model}.jsonl.gz"
        records = read_records(path) if path.exists() else []
        held[model] = _by_arm(r for r in records if r["weights"] == shipped(model))
    return [job for job in wanted if not _holds(held[job.model], job)]


def _holds(arms: dict[str, list[Record]], job: Job) -> bool:
    def has(recipe: Recipe, kind: str = "answer", tasks: Sequence[str] = BENCHMARKS) -> bool:
        mine = arms.get(_arm(kind, job.split, json.loads(recipe.to_json())), [])
        return all(sum(r["task"] == task for r in mine) >= job.per_family for task in tasks)

    if job.arm not in (FIXED_MEAN, FIXED_MEANS, DRIFT):
        return has(recipe_of(job.arm))
    survival = recipe_of("survival")
    if job.arm == DRIFT:
        return has(survival, "drift")
    found = arms.get(_arm("answer", job.split, json.loads(survival.to_json())), [])
    if not found:
        return False
    if job.arm == FIXED_MEAN:
        return has(fixed_at(found))
    own = {task: [r for r in found if r["task"] == task] for task in BENCHMARKS}
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
    runs.add_argument("--device", default="auto")
    runs.add_argument("--out", type=Path, default=RAW)
    runs.add_argument("--kept", type=Path, default=RECORDS, help="what it holds is not asked again")
    keeps = commands.add_parser("keep", help="merge raw records into the committed ones")
    keeps.add_argument("--raw", type=Path, default=RAW)
    keeps.add_argument("--kept", type=Path, default=RECORDS)
    commands.add_parser("list", help="arms and groups")
    given = parser.parse_args()
    if given.command == "run":
        wanted = left(jobs(given.arms, given.per_family, given.models), given.kept)
        run(wanted, given.rows, given.device, given.workers, given.out)
    elif given.command == "keep":
        keep_all(given.raw, given.kept)
    else:
        for name, group in GROUPS.items():
            print(
                f"{name}: {len(group.arms)} arms x {len(group.models)} models, {group.split}, ",
                end="",
            )
            print(f"{group.per_family} prompts a family")
            print(*(f"    {arm}" for arm in group.arms), sep="\n")


if __name__ == "__main__":
    main()
