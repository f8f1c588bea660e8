"""Replicas by least predicted work and by chance: `python -m benchmarks.serving.routing --help`.

The same requests of natural lengths, the same replicas, in turns (predicted, random, random, predicted), so
that a machine which does other work as well slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lastword
from benchmarks.serving.figures import Record, line_of, table
from benchmarks.serving.heard import Heard, arriving, closed_loop
from benchmarks.serving.load import MIX, Asked, requests
from benchmarks.serving.run import complete, equal
from benchmarks.serving.served import ROOT, SERVED, ask_server
from lastword.eval.run import surroundings

TURNS = ("predicted", "random", "random", "predicted")
READY = 180.0  # seconds
OUT = ROOT / "benchmarks" / "records" / "serving" / "routing.json"


@contextlib.contextmanager
def fleet(told: argparse.Namespace, routing: str) -> Iterator[str]:
    """Where replicas of an embedded model are served; they leave when told to."""
    command = [sys.executable, "-m", "lastword", "serve", "--model", told.model, "--port", "0"]
    command += ["--engine", "ray", "--replicas", str(told.replicas), "--cpus", "0.5"]
    command += ["--routing", routing, "--slots", str(told.slots), "--queue", str(told.requests)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    assert process.stdout is not None
    try:
        found = SERVED.search(process.stdout.readline().strip())
        assert found is not None, "the server did not start"
        yield found[1]
    finally:
        process.terminate()
        process.wait(timeout=60)


async def turn(told: argparse.Namespace, url: str, asked: list[Asked]) -> tuple[list[Heard], float]:
    """All requests once, and the seconds that took."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        ends = time.monotonic() + READY
        while (said := (await client.get("/health")).json())["counts"][
            "replicas"
        ] < told.replicas or (not said["ready"]):
            assert time.monotonic() < ends, "the replicas were not ready"
            await asyncio.sleep(0.1)
        ask = partial(ask_server, client, told.model)
        seen = {own.recipe: own for own in asked}
        await asyncio.gather(*(ask(own) for own in seen.values() for _ in range(2)))  # warm
        began = time.monotonic()
        if told.rate is None:
            heard = await closed_loop(ask, asked, told.clients)
        else:
            heard = await arriving(ask, asked, told.rate)
        return heard, time.monotonic() - began


def main(given: list[str] | None = None) -> Record:
    """Measure both, show the table, keep the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.routing")
    add = parser.add_argument
    add("--model", default="tiny-llada-base", help="an embedded model")
    add("--replicas", type=int, default=2)
    add("--requests", type=int, default=60)
    add("--clients", type=int, default=16)
    add("--rate", type=float, help="requests a second (Poisson); default: a closed loop")
    add("--slots", type=int, default=4)
    add("--check", type=int, default=8, help="answers of each that are decoded alone as well")
    add("--note", action="append", default=[], help="a sentence for the record: what else ran, say")
    add("--out", type=Path, default=OUT)
    told = parser.parse_args(sys.argv[1:] if given is None else given)
    model = lastword.load(told.model, device="cpu")
    asked = requests(model, told.requests)
    heard: dict[str, list[Heard]] = {name: [] for name in TURNS}
    seconds = dict.fromkeys(TURNS, 0.0)
    for name in TURNS:
        with fleet(told, name) as url:
            found, took = asyncio.run(turn(told, url, asked))
        heard[name] += complete(found, asked)
        seconds[name] += took
        print(name, f"{took:.1f} s", flush=True)
    come = f"{told.clients} clients, each of which asks again once it is answered"
    if told.rate is not None:
        come = f"{told.rate:g} requests a second (Poisson)"
    record = Record(
        model=told.model,
        dtype="float32",
        settings={
            "requests": told.requests,
            "clients": told.clients,
            "slots": told.slots,
            "replicas": told.replicas,
            "mix": " ".join(f"{name}={n}" for name, n in MIX.items()),
        },
        notes=[
            f"{told.replicas} replicas on Ray, {told.slots} slots each; {told.requests} requests, twice by "
            f"each routing; {come}. Turns: {', '.join(TURNS)}; both of an arm count together.",
            *told.note,
        ],
        lines=[
            line_of(name, heard[name], seconds[name], {}, equal(model, heard[name], told.check))
            for name in dict.fromkeys(TURNS)
        ],
        **surroundings(model),
    )
    told.out.parent.mkdir(parents=True, exist_ok=True)
    told.out.write_text(record.to_json())
    print(table(record))
    return record


if __name__ == "__main__":
    main()
