"""Replicas by least predicted work and by chance: `python -m benchmarks.serving.routing --help`.

The same requests of natural lengths, the same replicas, in turns (predicted, random, random, predicted), so
that a machine which does other work as well slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lastword
from benchmarks.serving.clients import ClientReply, arriving, closed_loop
from benchmarks.serving.figures import Record, line_of, table
from benchmarks.serving.load import MIX, LoadRequest, requests
from benchmarks.serving.routed import Work, p95, works
from benchmarks.serving.run import complete, equal
from benchmarks.serving.served import ROOT, SERVED, ask_server
from lastword.engines.base import environment

COLUMNS = re.compile(r'^lastword:diffusion_num_canvas_positions_total\{replica="(\w+)"\} (\S+)$', re.MULTILINE)
TURNS = ("predicted", "random", "random", "predicted")
LOADS = (0.5, 0.7, 0.9)
READY = 180.0  # seconds
OUT = ROOT / "benchmarks" / "records" / "serving" / "routing.json"


@contextlib.contextmanager
def fleet(options: argparse.Namespace, routing: str) -> Iterator[str]:
    """Serve replicas of an embedded model and yield their address; they are terminated at the end."""
    command = [sys.executable, "-m", "lastword", "serve", "--model", options.model, "--port", "0"]
    command += ["--engine", "ray", "--replicas", str(options.replicas), "--cpus", "0.5"]
    command += ["--routing", routing, "--max-batch-size", str(options.slots)]
    command += ["--max-queue-size", str(options.requests)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    try:
        found = SERVED.search(process.stdout.readline().strip())
        assert found is not None, "the server did not start"
        yield found[1]
    finally:
        process.terminate()
        process.wait(timeout=60)


async def turn(
    options: argparse.Namespace, url: str, asked: list[LoadRequest]
) -> tuple[list[ClientReply], float, float]:
    """All requests once, the seconds that took, and the share of columns that the busiest replica did."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        ends = time.monotonic() + READY
        while (said := (await client.get("/health")).json())["counts"]["replicas"] < options.replicas or (
            not said["ready"]
        ):
            assert time.monotonic() < ends, "the replicas were not ready"
            await asyncio.sleep(0.1)
        ask = partial(ask_server, client, options.model)
        seen = {request.recipe: request for request in asked}
        await asyncio.gather(*(ask(request) for request in seen.values() for _ in range(2)))  # warm
        before, began = await columns(client), time.monotonic()
        if options.rate is None:
            heard = await closed_loop(ask, asked, options.clients)
        else:
            heard = await arriving(ask, asked, options.rate)
        seconds, after = time.monotonic() - began, await columns(client)
        done = [after[name] - before.get(name, 0.0) for name in after]
        return heard, seconds, max(done) / sum(done)


async def columns(client: Any) -> dict[str, float]:
    """Return the columns that each replica has computed, which no other work on the machine changes."""
    return {name: float(n) for name, n in COLUMNS.findall((await client.get("/metrics")).text)}


def _shares(found: list[float]) -> str:
    return " and ".join(f"{share:.0%}" for share in found)


def _simulated(found: list[Work]) -> str:
    """The same rule in simulated time, where no other work disturbs it."""
    latencies = [
        f"{load:.0%} load {p95(found, 'predicted', load=load):.1f} and {p95(found, 'random', load=load):.1f}"
        for load in LOADS
    ]
    return (
        "Simulated on the columns that these requests took (20,000 of them, two replicas of 4,400 columns a "
        f"second, 4 slots), p95 in seconds by prediction and at random: {'; '.join(latencies)}."
    )


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
    options = parser.parse_args(sys.argv[1:] if given is None else given)
    model = lastword.load(options.model, device="cpu")
    asked = requests(model, options.requests)
    heard: dict[str, list[ClientReply]] = {name: [] for name in TURNS}
    seconds = dict.fromkeys(TURNS, 0.0)
    busiest: dict[str, list[float]] = {name: [] for name in TURNS}
    for name in TURNS:
        with fleet(options, name) as url:
            found, took, share = asyncio.run(turn(options, url, asked))
        busiest[name].append(share)
        heard[name] += complete(found, asked)
        seconds[name] += took
        print(name, f"{took:.1f} s, busiest {share:.0%}", flush=True)
    come = f"{options.clients} clients, each of which asks again once it is answered"
    if options.rate is not None:
        come = f"{options.rate:g} requests a second (Poisson)"
    record = Record(
        model=options.model,
        dtype="float32",
        settings={
            "requests": options.requests,
            "clients": options.clients,
            "slots": options.slots,
            "replicas": options.replicas,
            "mix": " ".join(f"{name}={n}" for name, n in MIX.items()),
        },
        notes=[
            f"{options.replicas} replicas on Ray, {options.slots} slots each; {options.requests} requests, twice by "
            f"each routing; {come}. Turns: {', '.join(TURNS)}; both of an arm count together.",
            "Columns that the busier replica computed: "
            + "; ".join(f"{name} {_shares(own)}" for name, own in busiest.items())
            + ".",
            *options.note,
            _simulated(works([own for found in heard.values() for own in found])),
        ],
        lines=[
            line_of(name, heard[name], seconds[name], {}, equal(model, heard[name], options.check))
            for name in dict.fromkeys(TURNS)
        ],
        **environment(model),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(record.to_json())
    print(table(record))
    return record


if __name__ == "__main__":
    main()
