"""Measure a healthy client of `lastword serve` while hostile clients attack: `python -m benchmarks.hostile --help`."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lastword
from benchmarks.hostile.clients import KEY, KINDS, MODEL
from benchmarks.hostile.record import HostileLine, HostileRecord, Latency, table
from benchmarks.serving.served import ROOT, SERVED, resident
from lastword.engines.base import environment

TIMEOUT = 20.0  # seconds of a healthy request
QUIET_SECONDS = 1.0  # before and after an attack
SETTLE_SECONDS = 10.0  # after an attack, at most, until nothing is left of it
SHORT = {"model": MODEL, "prompt": "Once upon a time", "length": "fixed:8", "max_tokens": 8}


@dataclass(frozen=True)
class ServerProcess:
    """A running `lastword serve`."""

    url: str
    process: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def files(self) -> int:
        """Return the number of open files of the server."""
        return len(os.listdir(f"/proc/{self.process}/fd"))


@contextmanager
def served() -> Iterator[ServerProcess]:
    """Run `lastword serve` with an embedded model and a key, and terminate it at the end."""
    command = [sys.executable, "-m", "lastword", "serve", "--model", MODEL, "--port", "0"]
    variables = os.environ | {"LASTWORD_API_KEY": KEY, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=variables
    )
    assert process.stdout is not None
    try:
        match = SERVED.search(process.stdout.readline().strip())
        assert match is not None, "the server did not start"
        yield ServerProcess(match[1], process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


@dataclass
class HealthyClient:
    """A client that sends one request after the other, and the seconds of each."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    async def send(self, client: Any, until: float, method: str, path: str, **request: Any) -> float:
        """Send requests until a time, at least one; return their median seconds."""
        import httpx

        first = len(self.seconds)
        while len(self.seconds) == first or time.monotonic() < until:
            start = time.monotonic()
            try:
                self.failed += (await client.request(method, path, **request)).status_code != 200
            except httpx.HTTPError:
                self.failed += 1
            self.seconds.append(time.monotonic() - start)
            await asyncio.sleep(0.02)
        return median(self.seconds[first:])


async def measure(server: ServerProcess, name: str, seconds: float) -> HostileLine:
    """Return the latencies of a healthy client before, during and after an attack, and what the attack left."""
    import httpx

    kind, health, answer = KINDS[name], HealthyClient(), HealthyClient()
    limits, headers = httpx.Limits(max_keepalive_connections=0), {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT, limits=limits, headers=headers) as client:

        async def both(duration: float) -> tuple[float, float]:
            until = time.monotonic() + duration
            return await asyncio.gather(
                health.send(client, until, "GET", "/health"),
                answer.send(client, until, "POST", "/v1/completions", json=SHORT),
            )

        before = await both(QUIET_SECONDS)
        health.seconds.clear()
        answer.seconds.clear()
        files, memory = server.files(), resident(server.process)
        most_files, most_memory, done = files, memory, False

        async def watch() -> None:
            nonlocal most_files, most_memory
            while not done:
                most_files = max(most_files, server.files())
                most_memory = max(most_memory, resident(server.process))
                await asyncio.sleep(0.05)

        watching = asyncio.ensure_future(watch())
        command = [sys.executable, "-m", "benchmarks.hostile.clients", name, str(server.port), str(seconds)]
        attackers = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        try:
            during = await both(seconds)
        finally:
            await attackers.wait()
            done = True
            await watching
        longest = max(health.seconds), max(answer.seconds)
        unfinished, deadline = 1, time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and (unfinished or server.files() > files):
            counts = (await client.get("/health")).json()["counts"]
            unfinished = counts["working"] + counts["waiting"]
            await asyncio.sleep(0.1)
        left = max(0, server.files() - files)
        after = await both(QUIET_SECONDS)
    latencies = [
        Latency(before=before[at], during=during[at], longest=longest[at], after=after[at], failed=client.failed)
        for at, client in enumerate((health, answer))
    ]
    return HostileLine(
        kind=name,
        connections=kind.connections,
        open=most_files - files,
        health=latencies[0],
        answer=latencies[1],
        memory_before=memory / 2**20,
        memory_during=most_memory / 2**20,
        memory_after=resident(server.process) / 2**20,
        files_left=left,
        answers_left=unfinished,
    )


def main(arguments: list[str] | None = None) -> HostileRecord:
    """Measure every kind of hostile client, write the record and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each attack")
    parser.add_argument("--out", type=Path, help="file of the record")
    options = parser.parse_args(arguments)
    lines = list[HostileLine]()
    with served() as server:
        for name in options.kinds:
            lines.append(asyncio.run(measure(server, name, options.seconds)))
            print(lines[-1], flush=True)
    record = HostileRecord(
        model=MODEL,
        settings={"seconds": options.seconds},
        lines=lines,
        **environment(lastword.load(MODEL, device="cpu")),
    )
    if options.out is not None:
        options.out.write_text(record.to_json())
    print(table(record))
    return record


if __name__ == "__main__":
    main()
