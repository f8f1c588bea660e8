"""Measure how a pool of processes scales: the same prompts with more and more workers, one thread each.

    python -m benchmarks.scaling                             1,000 prompts; 1, 2, 4 ... workers
    python -m benchmarks.scaling --workers 1 2 4 8
    python -m benchmarks.scaling --prompts 40 --workers 1 2  to test the script

Compares "longest predicted first" with "round robin", which assigns prompts to workers in advance. Only decoding
is timed; the workers have loaded the model and decoded some prompts before. Efficiency is the time of one worker
divided by n times the time of n workers; idle is the share of time in which workers had no work. Run it on an idle
machine.

If there are more workers than cores, the seconds say nothing about n cores, but the CPU seconds of each
worker do: n cores would wait for the busiest worker, if cores do not slow each other down. `own_core` is the
efficiency by that measure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import lastword
from lastword.engines.base import GenerationRequest, environment
from lastword.engines.local import QUEUE_FACTOR, ModelSource
from lastword.engines.pool import WorkerCall, WorkerPool, WorkerTask
from lastword.engines.workers import ProcessWorkers
from lastword.io.files import write
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.tasks import BENCHMARKS, load_frozen

RECORDS = Path(__file__).parent / "records" / "scaling"
MODEL = "tiny-llada-base"
BATCH_SIZE = 8
PREDICTED, ROUND_ROBIN = "predicted", "round robin"

Requests = dict[str, GenerationRequest]


class MeasuredPool(WorkerPool):
    """A pool that keeps the time at which each worker finished its last task."""

    def __init__(self, backend: ProcessWorkers) -> None:
        super().__init__(backend)
        self.last_done: dict[int, float] = {}

    def wait_for_all(self) -> None:
        """Wait until all workers have loaded the model."""
        self._start()
        while len(self._idle) < self.backend.num_workers:
            self._wait()

    def _finish_task(self, call: WorkerCall, future: Future[Any], error: BaseException | None) -> Any:
        self.last_done[call.worker] = time.perf_counter()
        return super()._finish_task(call, future, error)


class RoundRobinPool(MeasuredPool):
    """A pool that answers prompts in the given order, without probes."""

    def generate(self, requests: Any, recipe: Recipe, *, max_batch_size: int) -> Any:
        """Yield replies to tasks of equal size."""
        pairs, size = [*requests.items()], max_batch_size * QUEUE_FACTOR
        for first in range(0, len(pairs), size):
            batch = pairs[first : first + size]
            task = WorkerTask("answer", tuple(request for _, request in batch), recipe, max_batch_size)
            self._submit(min(self._idle), task)
            ((_, replies),) = self._wait()
            yield [replace(reply, key=key) for (key, _), reply in zip(batch, replies)]


def requests_of(model: Any, count: int) -> Requests:
    """Return `count` frozen validation prompts, families in turn."""
    families = [load_frozen("validation", family) for family in BENCHMARKS]
    examples = [example for turn in zip(*families) for example in turn][:count]
    if len(examples) < count:
        raise lastword.errors.SettingError(
            f"{count} prompts were requested, and {len(examples)} are frozen; give --prompts {len(examples)} or less"
        )
    return {
        f"prompt {index}": GenerationRequest(model.tokenizer.encode(example.prompt), index)
        for index, example in enumerate(examples)
    }


def measured(source: ModelSource, count: int, workers: int, order: str, recipe: Recipe) -> dict[str, Any]:
    """Measure a number of workers; return the seconds, the CPU seconds and the costs of the replies."""
    shares = workers if order == ROUND_ROBIN else 1
    kind: type[MeasuredPool] = RoundRobinPool if order == ROUND_ROBIN else MeasuredPool
    with ExitStack() as stack:
        backends = [ProcessWorkers(source, workers // shares, threads=1) for _ in range(shares)]
        pools = [kind(backend) for backend in backends]
        for pool in pools:
            stack.callback(pool.close)
        requests = requests_of(pools[0].model_info, count)
        resolved = resolve(recipe, pools[0].model_info)
        for pool in pools:
            pool.wait_for_all()
        # Each worker decodes once before the clock starts: kernels are chosen on first use.
        _answer(pools, dict([*requests.items()][: 4 * workers]), resolved)
        before = _cpu_seconds()
        start = time.perf_counter()
        replies = _answer(pools, requests, resolved)
        seconds = time.perf_counter() - start
        cpu = [now - before[worker] for worker, now in _cpu_seconds().items()]
        ends = [end for pool in pools for end in pool.last_done.values()]
    return {
        "workers": workers,
        "order": order,
        "seconds": round(seconds, 2),
        "cpu_most": round(max(cpu), 2),
        "cpu_all": round(sum(cpu), 2),
        "idle": round(sum(max(ends) - end for end in ends) / (len(ends) * seconds), 4),
        "tokens": sum(reply["length"] for reply in replies),
        "passes": sum(reply["cost"].forward_passes + reply["probe_cost"].forward_passes for reply in replies),
    }


def _cpu_seconds() -> dict[int, float]:
    """Return the CPU seconds that each worker process has used."""
    fields = {
        child.pid: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        for child in active_children()
        if child.pid
    }
    return {
        pid: (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")  # user and system
        for pid, values in fields.items()
    }


def _answer(pools: Sequence[WorkerPool], requests: Requests, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the details of the replies; several pools receive every n-th request each."""
    items = [*requests.items()]
    with ThreadPoolExecutor(len(pools)) as threads:
        shares = [dict(items[first :: len(pools)]) for first in range(len(pools))]
        parts = threads.map(lambda pool, share: _replies(pool, share, recipe), pools, shares)
        return [details for part in parts for details in part]


def _replies(pool: WorkerPool, requests: Requests, recipe: Recipe) -> list[dict[str, Any]]:
    details = []
    for batch in pool.generate(requests, recipe, max_batch_size=BATCH_SIZE):
        for reply in batch:
            if reply.error is not None:
                raise lastword.errors.EngineError(f"{reply.key} failed: {reply.error}")
            details.append(reply.details)
    return details


def run(model: str, counts: Sequence[int], prompts: int, recipe: str) -> dict[str, Any]:
    """Measure all numbers of workers with both orders, which share the measurement of one worker."""
    source = ModelSource(model, device="cpu")
    chosen = Recipe.named(recipe)
    rows: list[dict[str, Any]] = []
    for workers in counts:
        for order in (PREDICTED, ROUND_ROBIN):
            if workers == 1 and order == ROUND_ROBIN:
                continue  # with one worker the orders differ only in their batches
            rows.append(row := measured(source, prompts, workers, order, chosen))
            if rows[0]["workers"] == 1:
                alone, cores = rows[0], len(os.sched_getaffinity(0))
                shared = None if workers > cores else alone["seconds"] / (row["seconds"] * workers)
                row["efficiency"] = None if shared is None else round(shared, 4)
                row["own_core"] = round(alone["cpu_most"] / (row["cpu_most"] * workers), 4)
            print(json.dumps(rows[-1]), flush=True)
    if len({(row["tokens"], row["passes"]) for row in rows}) > 1:
        raise lastword.errors.EngineError("the answers depend on the number of workers")
    loaded = lastword.load(model, device="cpu")
    return {
        "model": model,
        "recipe": resolve(chosen, loaded).label(),
        "prompts": prompts,
        "batch_size": BATCH_SIZE,
        "threads": 1,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[2], 2),
        "system": platform.system(),
        **environment(loaded),
        "measured": rows,
    }


def table(record: dict[str, Any], recipe: str = "") -> str:
    """Return a Markdown table with a row per run: seconds, efficiency, CPU seconds and idle time."""
    processor = record["hardware"].partition(",")[0]
    lines = [
        f"{record['model']}, recipe `{recipe or record['recipe']}`: {record['prompts']:,} prompts, batches of "
        f"{record.get('batch_size', record.get('rows'))}, {record['threads']} thread per worker, "
        f"{record['cores']} cores ({processor}).",
        "",
        "| workers | order | seconds | efficiency | CPU seconds of the busiest worker | of all workers "
        "| efficiency by CPU seconds | idle |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["measured"]:
        shares = (row.get("efficiency"), row.get("own_core"))
        by_clock, by_cpu = ("" if share is None else f"{share:.0%}" for share in shares)
        lines.append(
            f"| {row['workers']} | {row['order']} | {row['seconds']:,.1f} | {by_clock} "
            f"| {row['cpu_most']:,.1f} | {row['cpu_all']:,.1f} | {by_cpu} | {row['idle']:.1%} |"
        )
    return "\n".join(lines)


def kept() -> str:
    """Return the tables of all records."""
    files = sorted(RECORDS.glob("*.json"))
    return "\n\n".join(table(json.loads(path.read_text("utf-8")), path.name.split(".")[1]) for path in files)


def main() -> None:
    """Parse the arguments, measure, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    usual = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    parser.add_argument("--workers", nargs="+", type=int, default=usual)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--out", type=Path, default=RECORDS)
    args = parser.parse_args()
    record = run(args.model, sorted(args.workers), args.prompts, args.recipe)
    args.out.mkdir(parents=True, exist_ok=True)
    target = args.out / f"{args.model}.{args.recipe}.{cores}-cores.json"
    write(target, json.dumps(record, indent=1) + "\n")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
