"""Worker backends of a pool: processes on this machine, or actors of a Ray cluster.

Each worker loads the weights; only requests, plans and replies are sent between processes.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from lastword.canvas.canvas import tree_to
from lastword.engines.base import ModelInfo
from lastword.engines.local import RUN_ERRORS, LocalEngine, ModelSource, error_text
from lastword.engines.pool import WorkerTask
from lastword.errors import EngineError, LastwordError, import_extra
from lastword.validation import check_int, check_type

MAX_WORKERS = 1024
SECONDS_TO_END = 5.0
CONNECT_TIMEOUT = 10.0  # seconds until a Ray cluster must accept a connection
_LOG = logging.getLogger(__name__)


class ModelWorker:
    """A worker and its model, in a spawned process or as a Ray actor. It returns errors, in a picklable form."""

    def __init__(self, source: ModelSource, threads: int | None = None) -> None:
        self.source, self.threads = source, threads
        self.engine: LocalEngine | None = None

    def load(self) -> ModelInfo | Exception:
        """Load the model if it is not loaded; return its properties, or the error of loading."""
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self.engine = self.engine or LocalEngine(self.source.load())
        except (LastwordError, OSError, RuntimeError, MemoryError) as error:
            return EngineError(f"{error} (on {platform.node()})")
        return self.engine.model_info

    def run(self, task: WorkerTask) -> list[Any] | Exception:
        """Return a reply, or a plan or None, per request of a task, in order; or the error of the whole task."""
        if self.engine is None:
            raise EngineError("the worker was restarted")  # by Ray, which does not load the model again
        requests, results = dict(enumerate(task.requests)), dict[int, Any]()
        try:
            if task.kind == "plan":
                for plans in self.engine.plan(requests, task.recipe, max_batch_size=len(requests)):
                    results |= {index: tree_to(plan, torch.device("cpu")) for index, plan in plans.items()}
            else:
                for replies in self.engine.generate(requests, task.recipe, max_batch_size=task.max_batch_size):
                    results |= {reply.key: reply for reply in replies}
        except RUN_ERRORS as error:
            return error
        except Exception as error:
            return EngineError(error_text(error))
        return [results.get(index) for index in requests]


class ProcessWorkers:
    """A backend of spawned processes, by default one per GPU if the device is "auto" or "cuda".

    Without a GPU, each worker computes with `threads` threads (default: 1), and the default is one worker per `threads`
    cores. The calling script needs `if __name__ == "__main__":`, because spawned processes import it.
    """

    def __init__(self, source: ModelSource, workers: int | None = None, *, threads: int | None = None) -> None:
        _check_workers("ProcessWorkers", source, workers, threads)
        self._gpus = _visible_gpus() if source.device in ("auto", "cuda") else []
        self.source, self.threads = source, threads or (None if self._gpus else 1)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.num_workers = workers or len(self._gpus) or max(1, cores // (self.threads or 1))
        self._processes: dict[int, tuple[BaseProcess, Connection]] = {}
        self._threads = ThreadPoolExecutor(self.num_workers)  # each thread waits for messages of one process

    def start(self, worker: int) -> Future[Any]:
        self._end(worker)
        gpu = self._gpus[worker % len(self._gpus)] if self._gpus else None
        context = get_context("spawn")  # a forked process cannot use a GPU or threads that its parent uses
        pipe, remote_pipe = context.Pipe()
        arguments, name = (remote_pipe, self.source, self.threads, gpu), f"lastword worker {worker}"
        process = context.Process(target=_serve_tasks, args=arguments, name=name, daemon=True)
        process.start()
        remote_pipe.close()  # otherwise the end of the process would not close the pipe
        self._processes[worker] = process, pipe
        return self._threads.submit(_receive, process, pipe)

    def submit(self, worker: int, task: WorkerTask) -> Future[Any]:
        return self._threads.submit(_receive, *self._processes[worker], task)

    def kill(self, worker: int) -> None:
        self._processes[worker][0].kill()

    def is_placed(self, worker: int) -> bool:
        return True

    def requirements(self) -> str:
        return f"{self.num_workers} processes to load {self.source.name}"

    def close(self) -> None:
        for process, _ in self._processes.values():  # signal all processes before the first wait
            process.terminate()
        for worker in [*self._processes]:
            self._end(worker)

    def _end(self, worker: int) -> None:
        """End the process of a worker, if there is one, and close its pipe."""
        if worker in self._processes:
            process, pipe = self._processes.pop(worker)
            process.terminate()
            process.join(SECONDS_TO_END)
            process.kill()
            process.join()
            pipe.close()


def _send(pipe: Connection, message: object) -> None:
    """Send a message by value. (PyTorch would send tensors as shared memory, which is lost when its process ends.)"""
    pipe.send_bytes(pickle.dumps(message))


def _receive(process: BaseProcess, pipe: Connection, task: WorkerTask | None = None) -> Any:
    """Send a task, if one is given, and return the next message of a process; raise EngineError if it ended."""
    try:
        if task is not None:
            _send(pipe, task)  # blocks if the process does not read
        return pickle.loads(pipe.recv_bytes())
    except Exception as error:  # the pipe is closed, or the message incomplete
        process.join(SECONDS_TO_END)
        raise EngineError(f"{process!r} sent no result ({error!r:.200})") from error  # the repr contains the exit code


def _serve_tasks(pipe: Connection, source: ModelSource, threads: int | None, gpu: str | None) -> None:
    """Load the model and send its properties, then run the received tasks one by one until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    worker = ModelWorker(source, threads)
    with suppress(EOFError, OSError):
        _send(pipe, worker.load())
        while worker.engine is not None:
            _send(pipe, worker.run(pickle.loads(pipe.recv_bytes())))


class RayWorkers:
    """A backend of Ray actors: `address` is "auto", "host:port", or "local" for a temporary cluster.

    Without an address Ray uses RAY_ADDRESS, else a cluster that runs on this machine, else a temporary one.
    If this process is already connected to Ray, that connection is used. Each actor takes a GPU if the cluster
    has any and the device is "auto" or "cuda", else `threads` cores. By default actors fill the cluster.
    """

    def __init__(
        self, source: ModelSource, workers: int | None = None, *, address: str | None = None, threads: int | None = None
    ) -> None:
        _check_workers("RayWorkers", source, workers, threads)
        self.source = source.with_absolute_paths()
        self._actors: dict[int, Any] = {}
        self._placed: dict[int, Any] = {}  # references that become ready when an actor runs
        self._ray = import_ray()
        self._connected = connect(self._ray, address)
        resources = self._ray.cluster_resources()
        self._gpu = source.device in ("auto", "cuda") and resources.get("GPU", 0) >= 1
        self.threads = threads or (None if self._gpu else 1)
        self._cores = 0 if self._gpu else threads or 1
        room = resources.get("GPU", 0) if self._gpu else resources.get("CPU", 0) // self._cores
        self.num_workers = workers or max(1, min(int(room), MAX_WORKERS))

    def start(self, worker: int) -> Future[Any]:
        if worker not in self._actors:
            resources = {"num_cpus": self._cores, "num_gpus": int(self._gpu)}
            # Ray restarts an actor as often as necessary, and the pool counts the attempts of a task.
            actor_class = self._ray.remote(**resources, max_restarts=-1, max_task_retries=0)(ModelWorker)
            self._actors[worker] = actor_class.remote(self.source, self.threads)
            self._placed[worker] = self._actors[worker].__ray_ready__.remote()
        # Loading is retried without limit, because calls fail at once as long as Ray tries to reach a dead node.
        load = self._actors[worker].load.options(max_task_retries=-1)
        future: Future[Any] = load.remote().future()
        return future

    def submit(self, worker: int, task: WorkerTask) -> Future[Any]:
        future: Future[Any] = self._actors[worker].run.remote(task).future()
        return future

    def kill(self, worker: int) -> None:
        self._ray.kill(self._actors.pop(worker))

    def is_placed(self, worker: int) -> bool:
        return bool(self._ray.wait([self._placed[worker]], timeout=0)[0])

    def requirements(self) -> str:
        free = self._ray.available_resources()
        resource = "a GPU" if self._gpu else f"{self._cores} CPU"
        available = ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
        return f"Ray to place actors that take {resource} each (free now: {available})"

    def close(self) -> None:
        """End the actors; disconnect from Ray, and end a temporary cluster, if this backend connected to it."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._connected:
            self._ray.shutdown()
            self._connected = False


def import_ray() -> Any:
    """Return the module ray, with usage statistics off by default, or raise ExtraError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return import_extra("ray", "ray", "--engine ray")


def connect(ray: Any, address: str | None) -> bool:
    """Connect this process to a Ray cluster and return True; return False if it is already connected."""
    if ray.is_initialized():
        return False
    name = address or os.environ.get("RAY_ADDRESS") or "one on this machine, or a new one"
    _LOG.info("connecting to Ray: %s", name)
    if address not in (None, "auto", "local"):
        _check_reachable(str(address))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with private_files():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray raises many types
        raise EngineError(
            f"cannot connect to a Ray cluster (address {name}): {error_text(error)}. Start one with `ray start "
            "--head`, give --address HOST:PORT of its head, or --address local. Ray and Python must have one version "
            "everywhere; a cluster with tokens needs RAY_AUTH_MODE=token and the same token here"
        ) from error
    with suppress(ValueError):  # in another thread, where Ray sets no handler
        signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the process without its cleanup
    return True


@contextmanager
def private_files() -> Iterator[None]:
    """Make files that are created in the block readable by this user only, such as the token of a new Ray cluster."""
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)


def _check_reachable(address: str) -> None:
    """Raise EngineError if nothing listens at an address. (Ray itself would wait for minutes.)"""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise EngineError(
            f"nothing listens at {address} ({error}): give auto, local, or HOST:PORT of the cluster's head, "
            "such as 10.0.0.1:6379; check with `ray status` that it runs there, and that this machine can reach it "
            "(Ray does not listen at 127.0.0.1 by default)"
        ) from error


def _check_workers(owner: str, source: object, workers: int | None, threads: int | None) -> None:
    check_type(owner, "source", source, ModelSource, 'ModelSource("tiny-llada-base")')
    for name, value in (("workers", workers), ("threads", threads)):
        if value is not None:
            check_int(owner, name, value, minimum=1, maximum=MAX_WORKERS)


def _visible_gpus() -> list[str]:
    """Return the usable GPUs by the names that CUDA_VISIBLE_DEVICES accepts."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [name.strip() for name in names.split(",")][:count] if names else [str(n) for n in range(count)]
