"""How a pool of processes scales: the same prompts with more and more workers, a thread each.

    python -m benchmarks.scaling                             1,000 prompts; 1, 2, 4 ... workers
    python -m benchmarks.scaling --workers 1 2 4 8
    python -m benchmarks.scaling --prompts 40 --workers 1 2  to see that it runs

Longest predicted first beside round robin, which deals prompts out beforehand. Seconds are those of asking,
workers being ready; efficiency is the seconds of one worker over n times those of n; idle is the share of
their time that workers had nothing left to do. Needs the core alone, and no Ray. Run it on a machine that
does nothing else.

Workers beyond the machine's cores share them, so that their seconds say nothing of n cores. The seconds of
CPU that each of them took do: the busiest worker's are what n cores would have waited for, if cores do not
slow each other down. `own_core` is the efficiency by that measure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import lastword
from lastword.engines.base import GenerationRequest, environment
from lastword.engines.local import ModelSource
from lastword.engines.pool import PREDICTED, ROUND_ROBIN, WorkerPool
from lastword.engines.processes import ProcessWorkers
from lastword.io.files import write
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.tasks import BENCHMARKS
from lastword.tasks.frozen import load_frozen

RECORDS = Path(__file__).parent / "records" / "scaling"
MODEL = "tiny-llada-base"
ROWS = 8


def questions_of(model: Any, count: int) -> dict[str, GenerationRequest]:
    """So many frozen validation prompts, the families in turn: lengths as they come."""
    families = [load_frozen("validation", family) for family in BENCHMARKS]
    turns = [example for turn in zip(*families) for example in turn][:count]
    if len(turns) < count:
        raise lastword.errors.SettingError(
            f"{count} prompts were asked for and {len(turns)} are frozen; give --prompts {len(turns)} or less"
        )
    return {
        f"prompt {at}": GenerationRequest(model.tokenizer.encode(one.prompt), at)
        for at, one in enumerate(turns)
    }


def measured(source: ModelSource, count: int, workers: int, order: str, recipe: Recipe) -> dict[str, Any]:
    """Seconds from the first question to the last reply, and what was replied."""
    with WorkerPool(ProcessWorkers(source, workers, threads=1), order=order) as pool:
        questions = questions_of(pool.model, count)
        resolved = resolve(recipe, pool.model)
        # Every worker has answered once before the clock starts: kernels are chosen on first use.
        warm = dict(list(questions.items())[: 4 * workers])
        pool.wait_for_all()
        _asked(pool, warm, resolved)
        spent = _spent()
        began = time.perf_counter()
        replies, ended = _asked(pool, questions, resolved)
        seconds = time.perf_counter() - began
        worked = [now - spent[worker] for worker, now in _spent().items()]
        last = sorted(ended.values())
    return {
        "workers": workers,
        "order": order,
        "seconds": round(seconds, 2),
        "cpu_most": round(max(worked), 2),
        "cpu_all": round(sum(worked), 2),
        "idle": round(sum(last[-1] - own for own in last) / (len(last) * seconds), 4),
        "tokens": sum(reply["length"] for reply in replies),
        "passes": sum(reply["cost"].forward_passes + reply["probe_cost"].forward_passes for reply in replies),
    }


def _spent() -> dict[str, float]:
    """Seconds of CPU that each worker has taken so far."""
    fields = {
        child.name: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        for child in active_children()
    }
    return {
        name: (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK")  # of user and of system
        for name, own in fields.items()
    }


def _asked(
    pool: WorkerPool, questions: dict[str, GenerationRequest], recipe: Recipe
) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """Facts of the replies, and when each worker gave its last one."""
    found = []
    for batch in pool.generate(questions, recipe, max_batch_size=ROWS):
        for reply in batch:
            if reply.error is not None:
                raise lastword.errors.EngineError(f"{reply.key} failed: {reply.error}")
            found.append(reply.details)
    return found, dict(pool.last_done)


def run(model: str, counts: Sequence[int], prompts: int, recipe: str) -> dict[str, Any]:
    """All of it; both orders have the same one worker to be compared with."""
    source = ModelSource(model, device="cpu")
    chosen = Recipe.named(recipe)
    rows: list[dict[str, Any]] = []
    for workers in counts:
        for order in (PREDICTED, ROUND_ROBIN):
            if workers == 1 and order == ROUND_ROBIN:
                continue  # what it would say of batches of unlike rows is not about workers
            row = measured(source, prompts, workers, order, chosen)
            rows.append(row)
            if rows[0]["workers"] == 1:
                alone, cores = rows[0], len(os.sched_getaffinity(0))
                shared = None if workers > cores else alone["seconds"] / (row["seconds"] * workers)
                row["efficiency"] = None if shared is None else round(shared, 4)
                row["own_core"] = round(alone["cpu_most"] / (row["cpu_most"] * workers), 4)
            print(json.dumps(rows[-1]), flush=True)
    if len({(row["tokens"], row["passes"]) for row in rows}) > 1:
        raise lastword.errors.EngineError("the same prompts had other answers with other workers")
    loaded = lastword.load(model, device="cpu")
    return {
        "model": model,
        "recipe": resolve(chosen, loaded).label(),
        "prompts": prompts,
        "rows": ROWS,
        "threads": 1,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[2], 2),
        "system": platform.system(),
        **environment(loaded),
        "measured": rows,
    }


def table(record: dict[str, Any]) -> str:
    """A line a run: seconds, how many times one worker, and the share of n times that it is."""
    alone, processor = record["measured"][0], record["hardware"].partition(",")[0]
    lines = [
        f"{record['model']}, recipe {record['recipe']}: {record['prompts']:,} prompts, {record['rows']} "
        f"rows at once, {record['threads']} thread a worker. {record['cores']} cores, {processor}.",
        "",
        "| workers | order | seconds | times one | efficiency | seconds of CPU, the busiest | all "
        "| efficiency by the busiest | idle |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["measured"]:
        shares = (row.get("efficiency"), row.get("own_core"))
        own, by_cpu = ("" if share is None else f"{share:.0%}" for share in shares)
        times = f"{alone['seconds'] / row['seconds']:.2f}" if shares[0] else ""
        lines.append(
            f"| {row['workers']} | {row['order']} | {row['seconds']:,.1f} | {times} | {own} "
            f"| {row['cpu_most']:,.1f} | {row['cpu_all']:,.1f} | {by_cpu} | {row['idle']:.1%} |"
        )
    return "\n".join(lines)


def kept() -> str:
    """The tables of all records."""
    files = sorted(RECORDS.glob("*.json"))
    return "\n\n".join(table(json.loads(path.read_text(encoding="utf-8"))) for path in files)


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    usual = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    parser.add_argument("--workers", nargs="+", type=int, default=usual)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--out", type=Path, default=RECORDS)
    given = parser.parse_args()
    found = run(given.model, sorted(given.workers), given.prompts, given.recipe)
    given.out.mkdir(parents=True, exist_ok=True)
    target = given.out / f"{given.model}.{given.recipe}.{cores}-cores.json"
    write(target, json.dumps(found, indent=1) + "\n")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
