"""Processes: workers on this machine, each a process of its own, one for every GPU or some cores."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from lastword.engines.base import WorkerDied, WorkerEvent, WorkerLoadFailed, WorkerReady, WorkerTask
from lastword.engines.local import ModelSource, ModelWorker, run_task
from lastword.errors import LastwordError
from lastword.validation import check_int, check_type

MAX_WORKERS = 1024
SECONDS_TO_END = 5.0


@dataclass
class _Place:
    """A process, and our end of the pipe to it."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False


class ProcessWorkers:
    """Workers that are spawned: one a GPU where there are some and the device is left to us, else one a core.

    On a CPU every worker computes with `threads` threads. A script that uses it needs the usual
    `if __name__ == "__main__":`, since a process that is spawned imports it.
    """

    def __init__(
        self, source: ModelSource, workers: int | None = None, *, threads: int | None = None
    ) -> None:
        check_type("Processes", "source", source, ModelSource, 'Source("tiny-llada-base")')
        if threads is not None:
            check_int("Processes", "threads", threads, minimum=1, maximum=MAX_WORKERS)
        self._cards = _cards() if source.device in ("auto", "cuda") else []
        threads = threads or (None if self._cards else 1)
        if workers is None:
            workers = len(self._cards) or max(1, _cores() // (threads or 1))
        check_int("Processes", "workers", workers, minimum=1, maximum=MAX_WORKERS)
        self.source, self.num_workers, self.threads = source, workers, threads
        self._places: dict[int, _Place] = {}

    def start(self, worker: int) -> None:
        self._end(worker)
        card = self._cards[worker % len(self._cards)] if self._cards else None
        context = get_context("spawn")  # a forked process can use neither threads nor a GPU in use
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(theirs, self.source, self.threads, card),
            daemon=True,
            name=f"lastword worker {worker}",
        )
        process.start()
        theirs.close()  # else its end would never be seen
        self._places[worker] = _Place(process, ours)

    def submit(self, worker: int, job: WorkerTask) -> None:
        with suppress(OSError):  # it is gone: `wait` says so
            _send(self._places[worker].pipe, job)

    def wait(self, seconds: float) -> Sequence[WorkerEvent]:
        pipes = {place.pipe: worker for worker, place in self._places.items()}
        found = [pipes[pipe] for pipe in wait(list(pipes), seconds) if isinstance(pipe, Connection)]
        return [self._received(worker) for worker in sorted(found)]

    def pending(self) -> str:
        waiting = [str(worker) for worker, place in self._places.items() if not place.ready]
        return f"worker {', '.join(waiting)} to load {self.source.name}"

    def close(self) -> None:
        for place in self._places.values():  # all at once, then wait for each
            place.process.terminate()
        for worker in [*self._places]:
            self._end(worker)

    def _received(self, worker: int) -> WorkerEvent:
        """What it said, or that it is gone: a message that was cut by its death is none."""
        place = self._places[worker]
        try:
            event: WorkerEvent = _received(place.pipe)
        except Exception as broken:  # the end of the pipe, or half a message
            return WorkerDied(worker, self._last_words(worker, broken))
        place.ready = place.ready or isinstance(event, WorkerReady)
        return _of(worker, event)

    def _last_words(self, worker: int, broken: Exception) -> str:
        place = self._places[worker]
        place.process.join(SECONDS_TO_END)
        code = place.process.exitcode
        self._end(worker)
        if code is None:
            return f"process {place.process.pid} cannot be understood ({broken!r:.200})"
        if code < 0:
            with suppress(ValueError):
                return f"process {place.process.pid} was ended by {signal.Signals(-code).name}"
        return f"process {place.process.pid} ended with status {code}"

    def _end(self, worker: int) -> None:
        """The process is gone and its pipe closed, if there was one."""
        place = self._places.pop(worker, None)
        if place is None:
            return
        place.pipe.close()
        if place.process.is_alive():
            place.process.terminate()
            place.process.join(SECONDS_TO_END)
        if place.process.is_alive():
            place.process.kill()
        place.process.join()


def _send(pipe: Connection, message: object) -> None:
    """By value: torch would share a tensor's memory, which is gone with the process that had it."""
    pipe.send_bytes(pickle.dumps(message))


def _received(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())


def _of(worker: int, event: WorkerEvent) -> WorkerEvent:
    """A worker does not know its number."""
    return replace(event, worker=worker)


def _serve(pipe: Connection, source: ModelSource, threads: int | None, card: str | None) -> None:
    """The life of a worker: load, then a job at a time until nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    if card is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
    with suppress(EOFError, OSError):
        try:
            worker = ModelWorker(source, threads)
        except (LastwordError, OSError, RuntimeError, MemoryError) as unable:
            _send(pipe, WorkerLoadFailed(0, str(unable)))
            return
        _send(pipe, WorkerReady(0, worker.model_info()))
        while True:
            job: WorkerTask = _received(pipe)
            _send(pipe, run_task(0, job, worker.run))


def _cards() -> list[str]:
    """The GPUs we may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    if named is None:
        return [str(number) for number in range(count)]
    return [card.strip() for card in named.split(",")][:count]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
