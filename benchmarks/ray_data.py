"""Compare the pool of `--engine ray` with a pipeline of Ray Data, also when a worker is killed or stopped.

    python -m benchmarks.ray_data                  300 prompts; 2 workers
    python -m benchmarks.ray_data --prompts 24     to test the script

Both decode the same prompts with actors of one thread in a cluster on this machine. Each run has its own process.
Seconds begin when the cluster has started and contain the loading of the model. Work of others on the machine
changes them, and hardly the CPU seconds of the workers.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lastword
from lastword.engines.base import GenerationRequest, environment
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.pool import WorkerPool
from lastword.engines.workers import RayWorkers, import_ray, private_files
from lastword.io.files import write
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.tasks import BENCHMARKS, load_frozen

RECORD = Path(__file__).parent / "records" / "ray-data.json"
SOURCE, RECIPE, BATCH_SIZE = ModelSource("tiny-llada-base", device="cpu"), "fast", 8
ARMS, FAULTS = ("pool", "data"), {"none": None, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LIMIT, STOP_LIMIT, TASK_TIMEOUT = 170, 150, 60.0  # seconds; a run counts as endless after LIMIT, or STOP_LIMIT
ARM_NAMES = {"pool": "our pool", "data": "Ray Data"}
FAULT_NAMES = {"none": "none", "kill": "SIGKILL of an actor", "stop": "SIGSTOP of an actor"}
ACTORS = ("ray::ModelWorker", "ray::MapWorker")
Requests = Mapping[str, GenerationRequest]


def make_requests(prompts: int) -> dict[str, GenerationRequest]:
    """Return requests with validation prompts of all families in turn."""
    tokenizer: Any = lastword.load(SOURCE.name, device="cpu").tokenizer
    texts = [
        example.prompt for row in zip(*(load_frozen("validation", family) for family in BENCHMARKS)) for example in row
    ]
    return {str(number): GenerationRequest(tokenizer.encode(text), 0) for number, text in enumerate(texts[:prompts])}


def pool_answers(requests: Requests, recipe: Recipe, workers: int) -> Iterator[dict[str, str]]:
    """Yield texts by key as lastword's pool answers them."""
    with WorkerPool(RayWorkers(SOURCE, workers, threads=1), task_timeout=TASK_TIMEOUT) as pool:
        for replies in pool.generate(requests, recipe, max_batch_size=BATCH_SIZE):
            yield {reply.key: reply.text for reply in replies}


def data_answers(requests: Requests, recipe: Recipe, workers: int) -> Iterator[dict[str, str]]:
    """Yield texts by key as a streaming pipeline of Ray Data answers them, in the order of the requests."""
    import ray.data

    class Answerer:
        """An actor with a model, which answers blocks of prompts."""

        def __init__(self) -> None:
            import torch

            torch.set_num_threads(1)
            self.engine = LocalEngine(SOURCE.load())

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            block = {key: requests[key] for key in batch["key"]}
            replies = self.engine.generate(block, recipe, max_batch_size=BATCH_SIZE)
            texts = {reply.key: reply.text for of_step in replies for reply in of_step}
            return {"key": batch["key"], "text": [texts[key] for key in batch["key"]]}

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows, size = [{"key": key} for key in requests], BATCH_SIZE
    blocks = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size))
    strategy = ray.data.ActorPoolStrategy(size=workers)
    answers = blocks.map_batches(Answerer, batch_size=size, compute=strategy, num_cpus=1)
    for row in answers.iter_rows():
        yield {row["key"]: row["text"]}


def actors() -> dict[int, float]:
    """Return the CPU seconds of the workers on this machine by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and (folder / "cmdline").read_text().startswith(ACTORS):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # the process has ended
            continue
    return found


def run(arm: str, fault: str, prompts: int, workers: int) -> dict[str, Any]:
    """Answer the prompts, with a fault after the first answer; return measurements and texts."""
    ray = import_ray()
    requests = make_requests(prompts)
    model = lastword.load(SOURCE.name, device="cpu")
    recipe = resolve(Recipe.named(RECIPE), model, [request.prompt_ids for request in requests.values()])
    with private_files():
        ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    texts: dict[str, str] = {}
    start, first, victim, cpu = time.monotonic(), 0.0, None, 0.0
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError))
    signal.alarm(LIMIT)
    answers = {"pool": pool_answers, "data": data_answers}[arm](requests, recipe, workers)
    try:
        for group in answers:
            first = first or time.monotonic() - start
            texts |= group
            cpu = max(cpu, sum(actors().values()))
            if (number := FAULTS[fault]) is not None and victim is None:
                victim = max(actors())
                os.kill(victim, number)
                signal.alarm(STOP_LIMIT if fault == "stop" else LIMIT)
    except TimeoutError:
        pass
    signal.alarm(0)
    seconds, memory = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if fault == "stop" and victim is not None:
        os.kill(victim, signal.SIGKILL)
    ray.shutdown()
    line = {"arm": arm, "fault": fault, "first": round(first, 1), "seconds": round(seconds, 1), "cpu": round(cpu, 1)}
    return {**line, "answers": len(texts), "driver_mib": round(memory), "texts": texts}


def table(path: Path = RECORD) -> str:
    """Return a Markdown table of the record."""
    rows = [
        "| fault | prompts | engine | first answers, s | all, s | answered | workers, CPU seconds | driver, MiB |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for line in json.loads(path.read_text())["lines"]:
        is_endless = line["answers"] < line["prompts"]
        seconds = (
            f"not in {STOP_LIMIT if line['fault'] == 'stop' else LIMIT}" if is_endless else f"{line['seconds']:.0f}"
        )
        cells = [
            FAULT_NAMES[line["fault"]],
            str(line["prompts"]),
            ARM_NAMES[line["arm"]],
            f"{line['first']:.0f}",
            seconds,
        ]
        cells += [str(line["answers"]), f"{line['cpu']:.0f}", str(line["driver_mib"])]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Run every arm with every fault, each in a process; write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_data")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--run", nargs=2, metavar=("ARM", "FAULT"), help="one run, which prints JSON")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    if options.run:
        arm, fault = options.run
        print(json.dumps(run(arm, fault, options.prompts, options.workers)))
        return
    lines, expected = [], None
    for fault in FAULTS:
        for arm in ARMS:
            command = [sys.executable, "-m", "benchmarks.ray_data", "--run", arm, fault]
            command += ["--prompts", str(options.prompts), "--workers", str(options.workers)]
            printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout
            line = json.loads(printed.splitlines()[-1])
            texts = line.pop("texts")
            expected = expected or texts
            line |= {"equal": all(expected[key] == text for key, text in texts.items()), "prompts": options.prompts}
            print(line, flush=True)
            lines.append(line)
    facts = {"model": SOURCE.name, "recipe": RECIPE, "workers": options.workers}
    hardware = environment(lastword.load(SOURCE.name, device="cpu"))
    write(options.out, json.dumps({**facts, **hardware, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
