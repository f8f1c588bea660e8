"""The server on a Ray cluster: HTTP processes in front of replicas of a model."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from threading import Thread
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import RayServeException

from lastword.engines.local import ModelSource
from lastword.engines.workers import connect, private_files
from lastword.errors import ExtraError, LastwordError, SettingError
from lastword.serve.access_log import configure_access_log
from lastword.serve.app import Server
from lastword.serve.autoscaling import LOAD_METRIC
from lastword.serve.engine import Lifecycle, ServerEngine
from lastword.serve.metrics import ReplicaStatus, merge_metrics
from lastword.serve.protocol import AnswerBody, HealthResponse, LengthsRequest, LengthsResponse, ServedModel
from lastword.serve.request import ServerError
from lastword.serve.serving import ModelService
from lastword.serve.settings import ReplicaSettings, ServerSettings, address_family, parse_replicas
from lastword.version import __version__

log = logging.getLogger("lastword.serve")

MIN_RAY_VERSION = (2, 60)  # the policy and broadcast APIs of Ray Serve differ in older versions
OBJECT_STORE_BYTES = 100_000_000  # of a local cluster; only text passes through the store
DEPLOYMENT, HTTP_DEPLOYMENT = "replica", "http"
ANY_ADDRESS = ("0.0.0.0", "::")
POLICY = "lastword.serve.autoscaling:AutoscalingPolicy"
MAX_TRIES = 3  # replicas that a request is sent to at most
MAX_CONSTRUCTOR_TRIES = 2  # per replica
SPARE_REQUESTS = 32  # per replica, above its queue size, so that the replica itself refuses them
# Ray replaces a replica after three failed health checks, so 7 seconds after it stopped to respond.
HEALTH = {"health_check_period_s": 1.0, "health_check_timeout_s": 2.0}
KILL_UNHEALTHY = {"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1"}  # by default, Ray waits for its unfinished requests
POLL_SECONDS = 0.2  # between two checks of a deadline or of the deployment
STATUS_SECONDS = 2.0  # for all replicas to report their status


class ServeReplica:
    """The class that Ray Serve deploys: an engine and its service, with weights loaded on its machine."""

    def __init__(self, source: ModelSource, name: str, settings: ServerSettings, version: str) -> None:
        if version != __version__:
            raise SettingError(
                f"this machine has lastword {__version__}, and the server has {version}; install the "
                "same version on every machine of the cluster"
            )
        self._engine = ServerEngine(source.load(), settings)
        self._service = ModelService(self._engine, name)
        self._engine.start()
        while self._engine.state == "starting":
            time.sleep(0.01)
        self.check_health()

    async def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Call a method of the service; yield its items, or its result as the only item."""
        result = getattr(self._service, method)(*arguments)
        if not isinstance(result, AsyncGenerator):
            yield await result
            return
        async with aclosing(result):
            async for item in result:
                yield item

    def status(self) -> ReplicaStatus:
        name = serve.get_replica_context().replica_id.unique_id
        return ReplicaStatus(name, self._engine.load(), self._engine.metrics.text())

    def drain(self, seconds: float) -> None:
        self._engine.drain(seconds)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the predicted seconds of work, which Ray passes to the autoscaling policy."""
        return {LOAD_METRIC: self._engine.load().seconds}

    def check_health(self) -> None:
        """Raise RuntimeError if the engine failed or hangs, so that Ray replaces this replica."""
        if self._engine.fault is not None or self._engine.is_stalled:
            reason = "hangs in a forward pass" if self._engine.fault is None else "stopped"
            raise RuntimeError(f"the engine {reason}") from self._engine.fault


def failure_reason(status: Any) -> str:
    """Return the last error message in the status of a Ray Serve application."""
    messages = [status.message, *(deployment.message for deployment in status.deployments.values())]
    lines = [line.strip() for text in messages for line in (text or "").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines or ["Ray gives no reason"])[-1]


class ReplicaClient(Lifecycle):
    """A server backend that sends requests to the replicas of a model, through the handle of their deployment.

    An answer depends on its request only, so a request is sent to another replica if its replica dies before anything
    was sent to the client.
    """

    def __init__(self, settings: ServerSettings, handle: Any = None) -> None:
        super().__init__(settings.drain_timeout)
        self._settings, self._handle = settings, handle  # None: the replicas are not ready
        self.unfinished = 0  # number of requests
        self._statuses: list[ReplicaStatus] = []  # as last reported
        self._watcher: asyncio.Task[None] | None = None
        if handle is not None:
            self._enter("ready")

    def start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self, seconds: float | None = None) -> None:
        self.drain(seconds)
        if self._watcher is not None:
            await self._watcher

    def answer(self, body: AnswerBody) -> AsyncGenerator[dict[str, Any], None]:
        return self._call("answer", body)

    async def lengths(self, body: LengthsRequest) -> LengthsResponse:
        return await self._call_once("lengths", body)

    async def served_model(self) -> ServedModel:
        return await self._call_once("served_model")

    async def _call_once(self, method: str, *arguments: Any) -> Any:
        """Return the only item that `_call` yields."""
        async with aclosing(self._call(method, *arguments)) as results:
            return await anext(results)

    async def _call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Call a method of the service in a replica and yield its items; its errors are raised here."""
        self._check_accepting()
        if self._handle is None:
            raise ServerError("no replica is ready yet; try again later", "starting")
        self.unfinished += 1
        try:
            for tries_left in reversed(range(MAX_TRIES)):
                is_started, items = False, self._handle.options(stream=True).call.remote(method, *arguments)
                try:
                    async for item in items:
                        is_started = True
                        yield item
                    return
                except RayTaskError as error:  # raised by the service
                    raise error.cause from error
                except TaskCancelledError:
                    raise
                except (RayError, RayServeException) as error:
                    log.warning("a replica was lost: %s", type(error).__name__)
                    if is_started or not tries_left:
                        message = "the replica that decoded this answer died; try again"
                        raise ServerError(message, "replica_lost") from error
                finally:
                    items.cancel()
        finally:
            self.unfinished -= 1

    async def health(self) -> HealthResponse:
        loads = [status.load for status in await self._replica_statuses()]
        running, waiting = sum(load.running for load in loads), sum(load.waiting for load in loads)
        return HealthResponse.of(self.state, working=running, waiting=waiting, replicas=len(loads))

    async def metrics(self) -> bytes:
        return merge_metrics(await self._replica_statuses())

    async def _replica_statuses(self) -> list[ReplicaStatus]:
        """Return the status of every replica, or the last known ones if a replica does not report in time."""
        if self._handle is not None:
            try:
                broadcast = self._handle.broadcast("status")
                results = await broadcast.results_async(timeout_s=STATUS_SECONDS, return_exceptions=True)
                self._statuses = [result for result in results if isinstance(result, ReplicaStatus)]
            except RayServeException:  # there is no replica
                self._statuses = []
            except (RayError, TimeoutError):
                log.warning("a replica did not report its status within %g seconds", STATUS_SECONDS)
        return self._statuses

    async def _count_unfinished(self) -> int:
        return self.unfinished

    async def _watch(self) -> None:
        """Wait until the service is drained; after the deadline, make replicas end unfinished requests."""
        while self.state != "draining" or (await self._count_unfinished() and time.monotonic() < self._drain_deadline):
            await asyncio.sleep(POLL_SECONDS)
        last = time.monotonic() + self._settings.client_timeout
        if await self._count_unfinished():
            with suppress(RayError, RayServeException, TimeoutError):
                await self._handle.broadcast("drain", 0.0).results_async(timeout_s=STATUS_SECONDS)
        while await self._count_unfinished() and time.monotonic() < last:
            await asyncio.sleep(POLL_SECONDS)
        self._enter("stopped")


class HttpServer:
    """A further HTTP process, as a deployment of Ray Serve; it listens on the port of the first one, on its machine."""

    def __init__(self, handle: Any, host: str, port: int, options: dict[str, Any]) -> None:
        client = self._client = ReplicaClient(options["settings"], handle)
        configure_access_log(options["settings"].access_log)
        server = Server(client, client, host=host, port=port, **options)
        self._task = asyncio.get_running_loop().create_task(self._serve(server, host, port))

    async def _serve(self, server: Server, host: str, port: int) -> None:
        """Listen once the application runs, a second after the first process, so that all are ready."""
        application = serve.get_replica_context().app_name
        while (await asyncio.to_thread(serve.status)).applications[application].status != "RUNNING":
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(1.0)
        await server.serve([listen(host, port)])

    def drain(self, seconds: float) -> int:
        """Drain this process; return its number of unfinished requests."""
        self._client.drain(seconds)
        return self._client.unfinished

    def check_health(self) -> None:
        """Raise RuntimeError if the process does not listen, unless it is draining, so that Ray replaces it."""
        if self._task.done() and self._client.state == "ready":
            reason = None if self._task.cancelled() else self._task.exception()
            raise RuntimeError("the HTTP server stopped") from reason


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port; other processes may listen on it too and share its connections."""
    return socket.create_server((host, port), family=address_family(host), reuse_port=True)


class ReplicatedService(ReplicaClient):
    """A server backend that deploys replicas of a model as a Ray Serve application, with further HTTP processes."""

    def __init__(
        self,
        source: ModelSource,
        name: str,
        settings: ServerSettings,
        replicas: ReplicaSettings,
        http: tuple[str, int, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(settings)
        self._source, self._name, self._replicas = source, name, replicas
        self._min_replicas, self._max_replicas = parse_replicas(replicas.replicas)
        self.application = "lastword-" + re.sub(r"[^A-Za-z0-9_-]", "-", name)
        self._gpus = replicas.gpus or 0.0
        if replicas.gpus is None and source.device != "cpu":
            resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
            self._gpus = 1.0 if resources.get("GPU", 0) > 0 else 0.0
        self._http, self._http_handle = http, self._handle  # host, port and options of a Server

    def check_room(self) -> None:
        """Raise SettingError if the cluster is too small for `min_replicas`, even when it is idle."""
        needs = {"CPU": self._replicas.cpus, "GPU": self._gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        room = 0.0
        for node in nodes:
            room += min((node.get(kind, 0.0) // need for kind, need in needs.items() if need), default=math.inf)
        if room < self._min_replicas:
            have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
            raise SettingError(
                f"{self._min_replicas} replicas of {needs['CPU']:g} CPUs and {needs['GPU']:g} GPUs "
                f"were requested, and the cluster has room for {room:g} ({have:.400}): use fewer --replicas, "
                "give each less with --cpus or --gpus, or add machines"
            )

    def start(self) -> None:
        super().start()
        Thread(target=self._deploy, name="lastword-deploy", daemon=True).start()

    def _deploy(self) -> None:
        try:
            self._handle = self._wait_for_replicas()
            self._enter("ready")
        except Exception as error:
            if not isinstance(error, LastwordError):
                log.exception("the replicas could not be started")
            self.fault = error
            self.drain(0.0)

    def _wait_for_replicas(self) -> Any:
        """Deploy the replicas and return a handle once the minimum number is ready; None if the server stops."""
        # This process listens, not Ray's proxy.
        serve.start(proxy_location="Disabled", controller_options={"runtime_env": {"env_vars": KILL_UNHEALTHY}})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if self.application in serve.status().applications:
            serve.delete(self.application)  # left by a server that was killed
        deployment = serve.deployment(name=DEPLOYMENT, **self._options())(ServeReplica)
        application = deployment.bind(self._source, self._name, self._settings, __version__)
        if self._http is not None and self._replicas.http_servers > 1:
            actor: dict[str, Any] = {"num_cpus": 0}  # as the first process, which Ray does not count either
            if self._http[0] not in ANY_ADDRESS:  # other machines do not have the address
                actor["resources"] = {f"node:{ray.util.get_node_ip_address()}": 0.001}  # type: ignore[no-untyped-call]
            count: dict[str, Any] = {"num_replicas": self._replicas.http_servers - 1, **HEALTH}
            deployed = serve.deployment(name=HTTP_DEPLOYMENT, ray_actor_options=actor, **count)(HttpServer)
            application = deployed.bind(application, *self._http)
        target = serve.RunTarget(application, name=self.application, route_prefix=None)
        (root,) = serve.run_many([target], wait_for_applications_running=False)
        handle = serve.get_deployment_handle(DEPLOYMENT, self.application)
        deadline = time.monotonic() + self._replicas.startup_timeout
        while self.state == "starting":
            status = serve.status().applications[self.application]
            if status.status == "RUNNING":
                handle.broadcast("status").results()  # starts the router of the handle
                self._http_handle = root if self._replicas.http_servers > 1 else None
                return handle
            if status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise SettingError(f"no replica could be started: {failure_reason(status)}")
            if time.monotonic() > deadline:
                raise SettingError(
                    f"the replicas were not ready after {self._replicas.startup_timeout:g} seconds: "
                    f"{failure_reason(status)}; is something else using the cluster (ray status)?"
                )
            time.sleep(POLL_SECONDS)
        return None

    def _options(self) -> dict[str, Any]:
        settings, replicas = self._settings, self._replicas
        autoscaling = {
            "min_replicas": self._min_replicas,
            "max_replicas": self._max_replicas,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "upscale_delay_s": replicas.upscale_delay,
            "downscale_delay_s": replicas.downscale_delay,
            "policy": {"policy_function": POLICY, "policy_kwargs": {"target_load": replicas.target_load}},
        }
        is_fixed = self._max_replicas == self._min_replicas
        return {
            **({"num_replicas": self._min_replicas} if is_fixed else {"autoscaling_config": autoscaling}),
            "ray_actor_options": {"num_cpus": replicas.cpus, "num_gpus": self._gpus},
            "max_ongoing_requests": settings.max_queue_size + settings.max_batch_size + SPARE_REQUESTS,
            "graceful_shutdown_timeout_s": settings.timeout,  # a removed replica first finishes its requests
            "graceful_shutdown_wait_loop_s": 0.5,
            **HEALTH,
            "max_constructor_retry_count": MAX_CONSTRUCTOR_TRIES,
            "logging_config": {"enable_access_log": False},
        }

    async def _count_unfinished(self) -> int:
        """Drain the further HTTP processes if this one is draining; return the unfinished requests of all."""
        counts: list[Any] = []
        if self.state == "draining" and self._http_handle is not None:
            seconds = max(0.0, self._drain_deadline - time.monotonic())
            with suppress(RayError, RayServeException, TimeoutError):
                broadcast = self._http_handle.broadcast("drain", seconds)
                counts = await broadcast.results_async(timeout_s=STATUS_SECONDS, return_exceptions=True)
        return self.unfinished + sum(count for count in counts if isinstance(count, int))


@contextmanager
def ray_cluster(address: str | None, print_line: Callable[[str], None]) -> Iterator[None]:
    """Connect to the Ray cluster at `address`; without one, start a local cluster and stop it at exit."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # otherwise a late thread of Serve starts another Ray
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < MIN_RAY_VERSION:
        oldest = ".".join(map(str, MIN_RAY_VERSION))
        raise ExtraError(
            f"Ray {ray.__version__} is installed, and serving needs {oldest} or newer: pip install "
            f"'ray[serve]>={oldest}'"
        )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        if address is None:
            with private_files():
                ray.init(
                    "local",
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        else:
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # clusters use tokens by default
            print_line(f"lastword joins the Ray cluster {address}")
            connect(ray, address)
        yield
    finally:
        ray.shutdown()  # a cluster that was joined keeps running


def serve_on_ray(
    source: ModelSource,
    *,
    name: str,
    replicas: ReplicaSettings,
    settings: ServerSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    print_line: Callable[[str], None] = log.info,
    **options: Any,
) -> None:
    """Serve replicas until a signal: the first drains them, a second stops them.

    `options` are passed to `Server`.
    """
    with ray_cluster(replicas.address, print_line):
        listener = listen(host, port)
        options |= {"name": name, "settings": settings}
        http = host, listener.getsockname()[1], options
        service = ReplicatedService(source.with_absolute_paths(), name, settings, replicas, http)
        service.check_room()
        try:
            Server(service, service, host=host, print_line=print_line, **options).run([listener])
        finally:
            # A local cluster is stopped with all its applications.
            if replicas.address is not None and service.application in serve.status().applications:
                serve.delete(service.application)
