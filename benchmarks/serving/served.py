"""A server in a separate process, and clients that stream from it over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serving.clients import ClientReply
from benchmarks.serving.load import LoadRequest, arm_of
from lastword.serve.settings import ServerSettings

SERVED = re.compile(r" at (http://\S+)$")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Served:
    """The address of a server and its process."""

    url: str
    model: str
    process: int


@contextlib.contextmanager
def served(model: str, arm: str, limits: ServerSettings, threads: int = 1) -> Iterator[Served]:
    """Run a server of an embedded model and terminate it at the end."""
    command = [sys.executable, "-m", "benchmarks.serving.served", model, arm, str(limits.max_batch_size)]
    command += [str(limits.max_queue_size)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    try:
        match = SERVED.search(process.stdout.readline().strip())
        assert match is not None, "the server did not start"
        yield Served(match[1], model, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


async def send_to_server(client: Any, model: str, request: LoadRequest) -> ClientReply:
    """Stream an answer of the model; `client` is an httpx.AsyncClient of its server."""
    job, start, first, texts = request.job, time.monotonic(), None, list[str]()
    body = {
        "model": model,
        "prompt": list(job.prompt_ids),
        "recipe": json.loads(job.recipe.to_json()),
        "seed": job.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage: dict[str, Any] = {}
    finished, done = 0, 0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done += 1
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                if choice["text"]:
                    first = first or time.monotonic() - start
                    texts.append(choice["text"])
                finished += choice["finish_reason"] is not None
            if not chunk["choices"]:
                usage = {**chunk["lastword"], **chunk["usage"]}
    assert (finished, done) == (1, 1), "an answer is incomplete, or there are two"
    return ClientReply(
        request,
        "".join(texts),
        usage["completion_tokens"],
        usage["predicted_length"],
        usage["horizon"],
        usage["forward_passes"],
        usage["tokens_computed"],
        time.monotonic() - start,
        first,
        usage["seconds_decoding"],
    )


def resident(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (resident_line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(resident_line.split()[1]) * 1024


def counted(metrics: str) -> dict[str, float]:
    """Return the counters of /metrics without labels, by name."""
    rows = [line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#")]
    return {name.removeprefix("lastword:"): float(value) for name, value in rows if "{" not in name}


def main() -> None:
    """Run the server; the arguments are model, arm, batch size and queue size."""
    import lastword
    from lastword.serve.app import create_server

    model, arm, batch_size, queue_size = sys.argv[1:]
    limits = ServerSettings(max_batch_size=int(batch_size), max_queue_size=int(queue_size))
    create_server(
        lastword.load(model),
        name=model,
        port=0,
        settings=limits,
        scheduler=arm_of(arm).scheduler,
        print_line=partial(print, flush=True),
    ).run()


if __name__ == "__main__":
    main()
