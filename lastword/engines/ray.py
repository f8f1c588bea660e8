"""Ray: workers that are actors of a cluster, on this machine or on many.

Ray starts an actor again that died, as often as it takes, where there is room; what it was given is the
pool's to give again. Weights are loaded inside of the actor, and nothing but questions and replies travels.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from lastword.engines.base import WorkerDied, WorkerEvent, WorkerLoadFailed, WorkerReady, WorkerTask
from lastword.engines.local import ModelSource, ModelWorker, run_task
from lastword.engines.processes import MAX_WORKERS
from lastword.errors import EngineError, ExtraError, LastwordError, install_command
from lastword.validation import check_int, check_type

CONNECT = 60.0  # seconds until a cluster must have answered
_LOG = logging.getLogger(__name__)


class ModelActor:
    """What runs in a Ray worker. It loads when it is asked to, so that what is wrong can be told."""

    def __init__(self, source: ModelSource, threads: int | None) -> None:
        self.source, self.threads = source, threads
        self._worker: ModelWorker | None = None

    def begin(self, worker: int) -> WorkerEvent:
        """Load the model."""
        try:
            self._worker = self._worker or ModelWorker(self.source, self.threads)
        except (LastwordError, OSError, RuntimeError, MemoryError) as unable:
            return WorkerLoadFailed(worker, f"{unable} (on {os.uname().nodename})")
        return WorkerReady(worker, self._worker.model_info())

    def run(self, worker: int, job: WorkerTask) -> WorkerEvent:
        """Do a job. One that was started again has no model yet, and has to begin before."""
        if self._worker is None:
            return WorkerDied(worker, "it was started again")
        return run_task(worker, job, self._worker.run)


class RayWorkers:
    """Workers of a Ray cluster: `address` is "auto", "host:port", or "local" for one that ends with us.

    Left out, it is RAY_ADDRESS, a cluster of this machine, or a local one, as Ray has it. Every actor takes a
    GPU where the cluster has some and the device is left to us, else `threads` cores. Without a number, as
    many workers as there is room for. Whoever has connected to Ray before keeps that connection.
    """

    def __init__(
        self,
        source: ModelSource,
        workers: int | None = None,
        *,
        address: str | None = None,
        threads: int | None = None,
    ) -> None:
        check_type("Ray", "source", source, ModelSource, 'Source("tiny-llada-base")')
        for name, value in (("workers", workers), ("threads", threads)):
            if value is not None:
                check_int("Ray", name, value, minimum=1, maximum=MAX_WORKERS)
        self._ray = import_ray()
        self._connected = connect(self._ray, address)
        try:
            resources = self._ray.cluster_resources()
            self._gpu = source.device in ("auto", "cuda") and resources.get("GPU", 0) >= 1
            self.source, self.threads = source.with_absolute_paths(), threads or (None if self._gpu else 1)
            room = resources.get("GPU", 0) if self._gpu else resources.get("CPU", 0) // (threads or 1)
            self.num_workers = workers or max(1, min(int(room), MAX_WORKERS))
        except BaseException:
            self.close()
            raise
        self._actors: dict[int, Any] = {}
        self._refs: dict[Any, int] = {}  # what was asked of an actor, and whose it is
        self._beginning: set[int] = set()

    def start(self, worker: int) -> None:
        if worker not in self._actors:
            kind = self._ray.remote(
                num_cpus=0 if self._gpu else self.threads or 1,
                num_gpus=1 if self._gpu else 0,
                max_restarts=-1,
                max_task_retries=0,  # the pool counts, so that no job is tried for ever
            )(ModelActor)
            self._actors[worker] = kind.remote(self.source, self.threads)
        self._refs = {ref: own for ref, own in self._refs.items() if own != worker}
        # To load is asked for until it is done: while a dead node is still being dialled, calls fail at once.
        begin = self._actors[worker].begin.options(max_task_retries=-1)
        self._refs[begin.remote(worker)] = worker
        self._beginning.add(worker)

    def submit(self, worker: int, job: WorkerTask) -> None:
        self._refs[self._actors[worker].run.remote(worker, job)] = worker

    def wait(self, seconds: float) -> Sequence[WorkerEvent]:
        if not self._refs:
            return []
        found, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=seconds)
        return [self._event(ref) for ref in found]

    def pending(self) -> str:
        free = self._ray.available_resources()
        takes = "a GPU" if self._gpu else f"{self.threads or 1} CPU"
        have = ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
        return (
            f"Ray to place {len(self._beginning)} actors that take {takes} each (free now: {have}) and load "
            f"{self.source.name}"
        )

    def close(self) -> None:
        """End our actors, and a cluster or a connection that began with us."""
        for actor in getattr(self, "_actors", {}).values():
            self._ray.kill(actor)
        self._actors, self._refs = {}, {}
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def _event(self, ref: Any) -> WorkerEvent:
        """What came of a call."""
        worker = self._refs.pop(ref)
        try:
            event: WorkerEvent = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as raised:  # no lastword there, or an older one
            return WorkerLoadFailed(worker, _brief(raised))
        except self._ray.exceptions.RayError as gone:
            if worker in self._beginning and _for_good(gone):
                return WorkerLoadFailed(worker, _brief(gone))
            return WorkerDied(worker, _brief(gone))
        self._beginning.discard(worker)
        return event


def import_ray() -> Any:
    """Ray, if it is installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as absent:
        raise ExtraError(
            f"--engine ray needs the package ray, in one version on every machine ({absent}): "
            f"{install_command('ray')}"
        ) from absent
    return ray


def connect(ray: Any, address: str | None, seconds: float = CONNECT) -> bool:
    """Connect to a cluster, within so many seconds. False: somebody had before."""
    if ray.is_initialized():
        return False
    said = address or os.environ.get("RAY_ADDRESS") or "one on this machine, or a new one"
    _LOG.info("connecting to Ray: %s", said)
    if address not in (None, "auto", "local"):
        _reach(str(address), seconds)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as refused:  # Ray raises whatever the reason is
        raise EngineError(
            f"no Ray cluster could be joined (address {said}): {_brief(refused)}. Start one with `ray start "
            "--head`, give --address HOST:PORT of its head, or --address local. Ray and Python must have one "
            "version everywhere, and a cluster with tokens wants RAY_AUTH_MODE=token and the same token here"
        ) from refused
    return True


def _reach(address: str, seconds: float) -> None:
    """Refuse an address where nobody listens: Ray itself would wait for minutes."""
    import socket

    host, found, port = address.removeprefix("ray://").rpartition(":")
    if not found or not port.isdigit() or not 0 < int(port) < 65536:
        raise EngineError(
            f"--address {address} was given; give auto, local, or HOST:PORT of the cluster's head, such as "
            "10.0.0.1:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=min(seconds, 10)).close()
    except OSError as nobody:
        raise EngineError(
            f"nobody listens at {address} ({nobody}): see that the head runs there (`ray status` on it says "
            "so) and that this machine may reach it; 127.0.0.1 is not where Ray listens unless it was told to"
        ) from nobody


def _for_good(gone: Exception) -> bool:
    """Was it the actor's making that failed, so that trying again would not help?"""
    return "creation task" in str(gone) or "RuntimeEnv" in type(gone).__name__


def _brief(wrong: Exception) -> str:
    """The line of an error that says most: Ray's own begin with pages of where."""
    cause = getattr(wrong, "cause", None)
    lines = [line.strip() for line in str(cause or wrong).splitlines() if line.strip()]
    return f"{type(wrong).__name__}: {lines[-1] if lines else ''}"[:600]
