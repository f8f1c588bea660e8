"""Compare routing by least predicted work with random routing: `python -m benchmarks.serving.routing --help`.

Both rules route the same requests to the same number of replicas, in turns (predicted, random, random, predicted),
so that other work on the machine affects both.
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
from benchmarks.serving.clients import ClientReply, closed_loop, poisson
from benchmarks.serving.figures import Record, line_of, table
from benchmarks.serving.load import MIX, LoadRequest, make_requests
from benchmarks.serving.routed import Work, p95, works
from benchmarks.serving.run import complete, equal_alone
from benchmarks.serving.served import ROOT, SERVED, send_to_server
from lastword.engines.base import environment

TOKENS = re.compile(r'^lastword:diffusion_num_canvas_positions_total\{replica="(\w+)"\} (\S+)$', re.MULTILINE)
TURNS = ("predicted", "random", "random", "predicted")
LOADS = (0.5, 0.7, 0.9)
READY_SECONDS = 180.0
OUT = ROOT / "benchmarks" / "records" / "serving" / "routing.json"


@contextlib.contextmanager
def fleet(options: argparse.Namespace, routing: str) -> Iterator[str]:
    """Serve replicas of an embedded model, yield their address and terminate them at the end."""
    command = [sys.executable, "-m", "lastword", "serve", "--model", options.model, "--port", "0"]
    command += ["--engine", "ray", "--replicas", str(options.replicas), "--cpus", "0.5"]
    command += ["--routing", routing, "--batch-size", str(options.batch_size)]
    command += ["--max-queue-size", str(options.requests)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    try:
        match = SERVED.search(process.stdout.readline().strip())
        assert match is not None, "the server did not start"
        yield match[1]
    finally:
        process.terminate()
        process.wait(timeout=60)


async def turn(
    options: argparse.Namespace, url: str, requests: list[LoadRequest]
) -> tuple[list[ClientReply], float, float]:
    """Send all requests; return the replies, the seconds, and the share of tokens of the busiest replica."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        deadline = time.monotonic() + READY_SECONDS
        while (health := (await client.get("/health")).json())["counts"]["replicas"] < options.replicas or (
            not health["ready"]
        ):
            assert time.monotonic() < deadline, "the replicas were not ready"
            await asyncio.sleep(0.1)
        send = partial(send_to_server, client, options.model)
        by_recipe = {request.recipe: request for request in requests}
        await asyncio.gather(*(send(request) for request in by_recipe.values() for _ in range(2)))  # warm-up
        before, start = await tokens_computed(client), time.monotonic()
        if options.rate is None:
            replies = await closed_loop(send, requests, options.clients)
        else:
            replies = await poisson(send, requests, options.rate)
        seconds, after = time.monotonic() - start, await tokens_computed(client)
        tokens = [after[name] - before.get(name, 0.0) for name in after]
        return replies, seconds, max(tokens) / sum(tokens)


async def tokens_computed(client: Any) -> dict[str, float]:
    """Return the tokens that each replica has computed; they do not depend on other work on the machine."""
    return {name: float(count) for name, count in TOKENS.findall((await client.get("/metrics")).text)}


def _shares(values: list[float]) -> str:
    return " and ".join(f"{share:.0%}" for share in values)


def _simulated(work: list[Work]) -> str:
    """Return a sentence with the p95 of both rules in simulated time, which other work does not affect."""
    latencies = [
        f"{load:.0%} load {p95(work, 'predicted', load=load):.1f} and {p95(work, 'random', load=load):.1f}"
        for load in LOADS
    ]
    return (
        "Simulated with the tokens that these requests computed (20,000 requests, two replicas of 4,400 tokens per "
        f"second, batches of 4), p95 in seconds with predicted and with random routing: {'; '.join(latencies)}."
    )


def main(arguments: list[str] | None = None) -> Record:
    """Measure both rules, write the record and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.routing")
    add = parser.add_argument
    add("--model", default="tiny-llada-base", help="an embedded model")
    add("--replicas", type=int, default=2)
    add("--requests", type=int, default=60)
    add("--clients", type=int, default=16)
    add("--rate", type=float, help="requests per second (Poisson); default: a closed loop")
    add("--batch-size", type=int, default=4)
    add("--check", type=int, default=8, help="answers per rule that are also decoded alone")
    add("--note", action="append", default=[], help="a sentence for the record, such as other work on the machine")
    add("--out", type=Path, default=OUT)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    model = lastword.load(options.model, device="cpu")
    requests = make_requests(model, options.requests)
    replies: dict[str, list[ClientReply]] = {name: [] for name in TURNS}
    seconds = dict.fromkeys(TURNS, 0.0)
    busiest: dict[str, list[float]] = {name: [] for name in TURNS}
    for name in TURNS:
        with fleet(options, name) as url:
            of_turn, turn_seconds, share = asyncio.run(turn(options, url, requests))
        busiest[name].append(share)
        replies[name] += complete(of_turn, requests)
        seconds[name] += turn_seconds
        print(name, f"{turn_seconds:.1f} s, busiest {share:.0%}", flush=True)
    arrivals = f"{options.clients} clients in a closed loop"
    if options.rate is not None:
        arrivals = f"{options.rate:g} requests per second (Poisson)"
    record = Record(
        model=options.model,
        dtype="float32",
        settings={
            "requests": options.requests,
            "clients": options.clients,
            "batch_size": options.batch_size,
            "replicas": options.replicas,
            "mix": " ".join(f"{name}={n}" for name, n in MIX.items()),
        },
        notes=[
            f"{options.replicas} replicas on Ray, batches of {options.batch_size}; {options.requests} requests, twice "
            f"with each rule; {arrivals}. Turns: {', '.join(TURNS)}; both turns of a rule count together.",
            "Tokens that the busier replica computed: "
            + "; ".join(f"{name} {_shares(shares)}" for name, shares in busiest.items())
            + ".",
            *options.note,
            _simulated(works([reply for of_rule in replies.values() for reply in of_rule])),
        ],
        lines=[
            line_of(name, replies[name], seconds[name], {}, equal_alone(model, replies[name], options.check))
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
