"""`lastword serve --engine ray` as an operator starts it, its replicas' processes, and clients."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import httpx

from tests.serve.process import served

READY = 300.0  # seconds, on cores that others use as well


def tree(process):
    """All processes below one, by number, with the words of their command."""
    parents, words = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
            words[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    below, found = {process}, {}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
        found |= {child: words[child] for child in more}
    return found


class Fleet:
    """A server that is there, with its replicas."""

    def __init__(self, process, url):
        self.process, self.url = process, url

    def health(self):
        return httpx.get(f"{self.url}/health", timeout=10).json()

    def replicas(self):
        """Numbers of the processes that answer."""
        return {own for own, words in tree(self.process.pid).items() if "ServeReplica" in words}

    def until(self, condition, seconds=READY):
        ends = time.monotonic() + seconds
        while not condition(said := self.health()):
            assert self.process.poll() is None, "the server left"
            assert time.monotonic() < ends, f"it did not come to that: {said}"
            time.sleep(0.1)

    def until_replicas(self, number, seconds=READY):
        self.until(lambda said: said["ready"] and said["counts"]["replicas"] == number, seconds)


@contextlib.contextmanager
def fleet(*options, model="toy", replicas=2):
    """Replicas of a model, ready; at the end all that was started is ended."""
    with served("--engine", "ray", "--cpus", "0.5", *options, model=model) as own:
        found = Fleet(own.process, own.url)
        found.until_replicas(replicas)
        below = tree(own.process.pid)
        try:
            yield found
        finally:
            if own.process.poll() is None:
                own.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(Exception):
                    own.process.wait(20)
                below |= tree(own.process.pid)
            for number, words in below.items():  # a server that was killed leaves them
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode() == words:
                        os.kill(number, signal.SIGKILL)


async def ask(client, body):
    """An answer's text, or the error that was told instead, and the seconds to wait before asking again."""
    if not body.get("stream"):
        reply = await client.post("/v1/completions", json=body)
        if reply.status_code == 200:
            return reply.json()["choices"][0]["text"], None, 0
        return None, reply.json()["error"]["code"], int(reply.headers["retry-after"])
    texts, done = [], 0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        if reply.status_code != 200:
            await reply.aread()
            return None, reply.json()["error"]["code"], int(reply.headers["retry-after"])
        async for line in reply.aiter_lines():
            assert not (done and line), "something follows the end"
            if line == "data: [DONE]":
                done += 1
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return None, chunk["error"]["code"], 1
                texts += [choice["text"] for choice in chunk["choices"]]
    assert done == 1 or not texts, "a stream ended without a word"
    return ("".join(texts), None, 0) if done else (None, "cut", 1)
