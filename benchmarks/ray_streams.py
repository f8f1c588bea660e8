"""Measure the CPU time of streams through the HTTP processes and replicas of `lastword serve --engine ray`.

    python -m benchmarks.ray_streams                               1,200 streams from 32 clients; 1 and 2 HTTP processes
    python -m benchmarks.ray_streams --streams 40 --out FILE       to test the script

Every stream has 8 tokens of an embedded model, one token per forward pass. The CPU time of the clients is not counted.
Work of others on the machine changes the seconds, and hardly the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lastword
from benchmarks.serving.served import ROOT, SERVED
from lastword.engines.base import environment
from lastword.io.files import write
from lastword.serve.ray import HTTP_DEPLOYMENT

RECORD = Path(__file__).parent / "records" / "ray-streams.json"
MODEL, REPLICAS, CLIENTS = "tiny-llada-base", 2, 32
BODY = {"model": MODEL, "prompt": "Once upon a time", "length": "fixed:8", "max_tokens": 8, "stream": True}
PROCESSES = ("first", "further", "replicas")  # the first HTTP process is the one of the command
STARTED = 180.0  # seconds until the replicas must be ready


@contextmanager
def served(http_servers: int) -> Iterator[tuple[str, int]]:
    """Run a server with replicas on Ray; yield its address and process id."""
    options = ["--replicas", str(REPLICAS), "--http-servers", str(http_servers), "--cpus", "0.5", "--access-log", "off"]
    command = [sys.executable, "-m", "lastword", "serve", "--model", MODEL, "--port", "0", "--engine", "ray", *options]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables)
    assert process.stdout is not None
    try:
        lines = (SERVED.search(line.strip()) for line in process.stdout)  # Ray may print lines of its own
        yield next(match[1] for match in lines if match), process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def cpu_seconds(server: int) -> dict[str, float]:
    """Return the CPU seconds of the first HTTP process, of the further ones, and of the replicas so far."""
    seconds = dict.fromkeys(PROCESSES, 0.0)
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdecimal():
                continue
            title = (folder / "cmdline").read_text()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(folder.name) == server:
            name = "first"
        elif title.startswith("ray::ServeReplica:"):
            name = "further" if f":{HTTP_DEPLOYMENT}" in title else "replicas"
        else:
            continue
        seconds[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


async def stream_answers(url: str, count: int) -> int:
    """Stream answers from CLIENTS clients with a connection each; return the number of chunks."""
    import httpx

    left, chunks = iter(range(count)), 0

    async def client() -> None:
        nonlocal chunks
        for _ in left:  # a new connection per stream, so that the HTTP processes share them evenly
            async with (
                httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as connection,
                connection.stream("POST", "/v1/completions", json=BODY) as reply,
            ):
                assert reply.status_code == 200, await reply.aread()
                received = [line async for line in reply.aiter_lines() if line.startswith("data: {")]
                chunks += len(received)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return chunks


async def wait_until_ready(url: str) -> None:
    """Wait until the replicas are ready and have answered."""
    import httpx

    last = time.monotonic() + STARTED
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        while (await client.get("/ready")).status_code != 200:
            assert time.monotonic() < last, "the replicas did not start"
            await asyncio.sleep(0.5)
    await asyncio.sleep(3.0)  # further HTTP processes begin to listen after the first one
    await stream_answers(url, 2 * CLIENTS)


def measure(http_servers: int, streams: int) -> dict[str, Any]:
    """Return streams per second and milliseconds of CPU per stream with a number of HTTP processes."""
    with served(http_servers) as (url, process):
        asyncio.run(wait_until_ready(url))
        before, start = cpu_seconds(process), time.monotonic()
        chunks = asyncio.run(stream_answers(url, streams))
        seconds, after = time.monotonic() - start, cpu_seconds(process)
    cpu = {name: round(1e3 * (after[name] - before[name]) / streams, 2) for name in PROCESSES}
    facts = {"http_servers": http_servers, "streams": streams, "chunks": round(chunks / streams, 1)}
    return {**facts, "cpu_ms": cpu, "streams_per_second": round(streams / seconds, 1)}


def table(path: Path = RECORD) -> str:
    """Return a Markdown table of the record."""
    lines = json.loads(path.read_text())["lines"]
    rows = ["| HTTP processes | first | further | replicas | streams per second |", "|---:|---:|---:|---:|---:|"]
    for line in lines:
        cpu = line["cpu_ms"]
        cells = [f"{cpu['first']:.1f}", f"{cpu['further']:.1f}" if line["http_servers"] > 1 else ""]
        cells += [f"{cpu['replicas']:.1f}", f"{line['streams_per_second']:.0f}"]
        rows.append(f"| {line['http_servers']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure all numbers of HTTP processes and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_streams")
    parser.add_argument("--streams", type=int, default=1200)
    parser.add_argument("--http-servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    lines = []
    for count in options.http_servers:
        lines.append(measure(count, options.streams))
        print(lines[-1], flush=True)
    facts = {"model": MODEL, "replicas": REPLICAS, "clients": CLIENTS, "tokens": BODY["max_tokens"]}
    record = {**facts, **environment(lastword.load(MODEL, device="cpu")), "lines": lines}
    write(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
