"""The server on a Ray cluster: replicas of the application behind one address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any, Protocol, runtime_checkable

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from lastword.engines.local import ModelSource
from lastword.errors import ExtraError, LastwordError, SettingError, install_command
from lastword.serve.app import (
    METRICS_TYPE,
    ApiKeys,
    ClientDisconnected,
    LastwordApp,
    add_error_handlers,
    build_server,
    cancel_on_disconnect,
    read_body,
    render_page,
)
from lastword.serve.engine import EngineState
from lastword.serve.metrics import merge_metrics
from lastword.serve.protocol import HealthResponse, http_failure
from lastword.serve.request import DrainingError, ReplicaLostError, ServerError, StartingError
from lastword.serve.scheduler import ReplicaReport
from lastword.serve.settings import LOAD_METRIC, ReplicaSettings, ServerSettings, allowed_hosts, check_exposed
from lastword.version import __version__

_REPORTS: dict[str, Mapping[str, ReplicaReport]] = {}


def record_reports(application: str, known_replicas: Mapping[str, ReplicaReport]) -> None:
    """From the router: all replicas that run, and what each said last."""
    _REPORTS[application] = dict(known_replicas)


def known_replicas(application: str) -> Mapping[str, ReplicaReport]:
    """All that run, by their names."""
    return _REPORTS.get(application, {})


log = logging.getLogger("lastword.serve")

AsgiApplication = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class ForwardedRequest:
    """A request that was read whole."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def scope(self) -> dict[str, Any]:
        """As an ASGI server would say it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }


async def run_application(app: AsgiApplication, asked: ForwardedRequest) -> AsyncGenerator[Message, None]:
    """Messages of the application, as it sends them; whoever stops listening has left."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
    body: list[Message] = [{"type": "http.request", "body": asked.body, "more_body": False}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await asyncio.Event().wait()  # that it leaves is told by cancelling
        raise AssertionError

    async def run() -> None:
        try:
            await app(asked.scope(), receive, messages.put)
        except Exception:  # its answer was sent; what went wrong is for the log
            log.exception("a request failed")
        await messages.put(None)

    running = asyncio.ensure_future(run())
    try:
        while (message := await messages.get()) is not None:
            yield message
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


MAX_TRIES = 3  # replicas that are asked, one after the other, before the client is told
EVENT_STREAM_TYPE = b"text/event-stream"

SendToReplica = Callable[[ForwardedRequest], AsyncIterator[Message]]


class RetryingRelay:
    """Sends on what a replica answers.

    An answer depends on question, recipe and seed alone, so that another replica may be asked as long as the
    client was sent nothing. Once it was, it is told that the rest does not come, and nothing is said twice.
    """

    def __init__(self, ask: SendToReplica, is_lost: Callable[[BaseException], bool]) -> None:
        self._ask, self._is_lost = ask, is_lost
        self.over = asyncio.Event()  # nobody is waited for any longer

    async def __call__(self, asked: ForwardedRequest, send: Send) -> None:
        """Answer a request; what is raised was not sent."""
        for left in reversed(range(MAX_TRIES)):
            sent = _DelayedResponse(send)
            try:
                await self._unless_over(self._once(asked, sent))
                return
            except ServerError as refusal:
                if sent.begun:
                    await sent.fail(refusal)
                    return
                raise
            except Exception as error:
                if not self._is_lost(error):
                    if not sent.begun:
                        raise
                    log.exception("a replica failed")
                    await sent.fail(error)
                    return
                log.warning("a replica was lost: %s", type(error).__name__)
                said = ReplicaLostError("the replica that made this answer is gone; ask again")
                if sent.begun:
                    await sent.fail(said)
                    return
                if not left:
                    raise said from error

    async def _once(self, asked: ForwardedRequest, send: _DelayedResponse) -> None:
        async for message in self._ask(asked):
            await send(message)

    async def _unless_over(self, work: Awaitable[None]) -> None:
        working = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise DrainingError("the server stopped before the answer was complete; ask again later")
            await working
        finally:
            over.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working})


class _DelayedResponse:
    """What the client was sent: nothing, until there is something of the body."""

    def __init__(self, send: Send) -> None:
        self._send, self._head = send, dict[str, Any]()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = dict(message)
            return
        if not self.begun:
            self.begun = True
            await self._send(self._head)
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """An event that says so, the last one of a stream; no `[DONE]` follows it.

        Only streams are sent in parts.
        """
        kinds = {name.lower(): value for name, value in self._head["headers"]}
        said = b""
        if kinds.get(b"content-type", b"").startswith(EVENT_STREAM_TYPE):
            said = b"data: " + http_failure(error).reply.model_dump_json().encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": said, "more_body": False})


@dataclass(frozen=True)
class ReplicaSpec:
    """What a replica is made of: names and numbers. It loads the weights itself, where it runs."""

    source: ModelSource
    name: str
    limits: ServerSettings
    key: str | None  # by which it knows the one who listens; None: no key is asked for
    version: str = __version__  # of who asks for it


class ServeReplica:
    """The class that Ray Serve deploys."""

    def __init__(self, made: ReplicaSpec) -> None:
        from lastword.serve.app import create_app
        from lastword.serve.engine import Engine

        if made.version != __version__:
            raise SettingError(
                f"this machine has lastword {__version__}, and {made.version} was started; install the same "
                "version on every machine of the cluster"
            )
        self._engine = Engine(made.source.load(), made.limits)
        keys = () if made.key is None else (made.key,)
        self._app = create_app(self._engine, name=made.name, limits=made.limits, keys=keys)
        self._asking = 0  # requests in hand
        self._each = 0.0  # columns by request, as far as is known
        self._engine.start()
        while self._engine.state == "starting":
            time.sleep(0.01)
        self.check_health()

    async def answer(self, asked: ForwardedRequest) -> AsyncGenerator[Message, None]:
        """What the application answers, message by message."""
        self._asking += 1
        messages = run_application(self._app, asked)
        try:
            async for message in messages:
                yield message
        finally:
            self._asking -= 1
            await messages.aclose()

    async def metrics(self, to: str) -> bytes:
        """Counters of this replica; `to` is its name, by which the call found it."""
        return self._engine.metrics.text()

    def report(self) -> ReplicaReport:
        """The work in hand."""
        columns, counts = self._engine.columns_of_work, self._engine.counts()
        if self._asking:
            self._each = columns / self._asking
        return ReplicaReport(
            columns,
            self._each,
            self._asking,
            counts["working"],
            counts["waiting"],
            self._engine.seconds_of_work,
        )

    def record_routing_stats(self) -> dict[str, Any]:
        """Ray hands it to routers."""
        return self.report().to_data()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray hands it to the policy."""
        return {LOAD_METRIC: self._engine.seconds_of_work}

    def check_health(self) -> None:
        """Ray starts another one in its place where this raises."""
        if self._engine.state == "stopped":
            raise RuntimeError("the engine stopped") from self._engine.fault


MIN_RAY_VERSION = (2, 60)  # of Ray: routers and policies of others' have moved between its versions
OBJECT_STORE_BYTES = (
    100_000_000  # bytes of Ray's object store where we start it: texts pass through it, no weights
)
CONNECT_SECONDS = 5.0  # seconds in which somebody must listen at an address
NAMESPACE = "lastword"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@contextmanager
def ray_cluster(address: str | None, say: Callable[[str], None]) -> Iterator[Any]:
    """The module `ray`, connected: to a cluster of this machine that ends with us, or to the one named.

    Whatever is already there is left as it is; no more is stopped than what was started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else whatever thread of Serve's still asks for something after the end starts another Ray.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if address is not None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # a cluster has it on, unless told otherwise
    ray = import_ray()
    if address is not None:
        check_address(address, ray)
        say(f"lastword joins the Ray cluster {address}")
    try:
        _connect(ray, address)
        yield ray
    finally:
        ray.shutdown()  # of a cluster that was joined it only lets go


def import_ray() -> Any:
    """Ray with Serve, of a version that was tried."""
    try:
        import ray
        import ray.serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    except ImportError as missing:
        raise ExtraError(
            f"--engine ray needs {missing.name}, which is not installed: {install_command('ray', 'serve')}"
        ) from missing
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < MIN_RAY_VERSION:
        oldest = ".".join(map(str, MIN_RAY_VERSION))
        raise ExtraError(
            f"Ray {ray.__version__} is installed; serving on it needs {oldest} or newer: pip install "
            f"'ray[serve]>={oldest}'"
        )
    return ray


def check_address(address: str, ray: Any) -> None:
    """Refuse an address where nobody listens: Ray would try it for minutes."""
    if address == "auto":
        found = os.environ.get("RAY_ADDRESS") or _current_address()
        if not found:
            raise SettingError(
                "--address auto was given, and no Ray runs on this machine: start one (ray start --head), "
                "give host:port, or leave --address out to have one started for this server alone"
            )
        address = found
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or int(port) > 65_535:
        raise SettingError(
            f"the Ray address {address!r} was given; allowed: auto, or host:port (192.168.0.7:6379)"
        )
    _check_listens(host, int(port), address)
    own = ray.util.get_node_ip_address()
    if host in LOOPBACK and own not in LOOPBACK:
        try:
            _check_listens(own, int(port), address)
        except SettingError:
            raise SettingError(
                f"Ray takes {host} for this machine's own address, {own}, and there nobody listens at port "
                f"{port}: start the head with --node-ip-address={own}, or 127.0.0.2 for this machine alone"
            ) from None


def _current_address() -> str | None:
    """Where the cluster of this machine was last."""
    from ray._private.utils import read_ray_address  # no public name for it

    return read_ray_address()


def _check_listens(host: str, port: int, address: str) -> None:
    try:
        socket.create_connection((host.strip("[]"), port), CONNECT_SECONDS).close()
    except OSError as wrong:
        raise SettingError(
            f"no Ray cluster answers at {address} ({wrong}): is its head running (ray start --head "
            "--port=6379), and may this machine reach it?"
        ) from wrong


def _connect(ray: Any, address: str | None) -> None:
    shared = {
        "namespace": NAMESPACE,
        "log_to_driver": False,  # their lines are in Ray's folder of logs
        "logging_level": "error",
    }
    try:
        if address is None:
            # "local": else a cluster that has crashed is looked for.
            ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **shared)
        else:
            ray.init(address, **shared)
    except Exception as wrong:
        raise connection_error(address, wrong) from wrong


def connection_error(address: str | None, wrong: Exception) -> SettingError:
    """Why Ray did not take us, in words."""
    text = str(wrong)
    at = address or "this machine"
    if "ersion mismatch" in text:
        return SettingError(
            f"the Ray cluster {at} has other versions than this process: "
            f"{' '.join(text.split())}; install the same Ray and Python on every machine"
        )
    if any(word in text.lower() for word in ("authenticat", "token")):
        return SettingError(
            f"the Ray cluster {at} asks for its token: copy ~/.ray/auth_token of its head here, or set "
            f"RAY_AUTH_TOKEN_PATH; for a cluster without one set RAY_AUTH_MODE=disabled ({_first_line(text)})"
        )
    if address is not None and "ailed to connect" in text:  # somebody listens there: that was looked at
        return SettingError(
            f"what listens at {at} did not let this process in: is it a Ray cluster, and is its token here "
            "(~/.ray/auth_token of its head, or RAY_AUTH_TOKEN_PATH)? For a cluster without one set "
            "RAY_AUTH_MODE=disabled"
        )
    return SettingError(f"Ray could not be reached at {at}: {_first_line(text) or type(wrong).__name__}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


REPORT_SECONDS = 0.5  # seconds between two reports of a replica
HEALTH_SECONDS = 2.0  # seconds between two looks at a replica
SPARE_REQUESTS = 32  # requests beyond queue and slots that a replica takes, to refuse them itself
DEPLOY_POLL_SECONDS = 0.2  # seconds
MAX_CONSTRUCTOR_TRIES = 2  # of a replica to be made, before all are given up
DEPLOYMENT = "replica"

# Ray imports them itself.
ROUTER = "lastword.serve.ray_router:LeastLoadedRouter"
POLICY = "lastword.serve.settings:AutoscalingPolicy"


class RayDeployment:
    """Replicas of one application; nothing is asked for before `deploy`."""

    def __init__(self, ray: Any, made: ReplicaSpec, replicas: ReplicaSettings) -> None:
        self._ray, self._made, self._replicas = ray, made, replicas
        self.application = "lastword-" + re.sub(r"[^A-Za-z0-9_-]", "-", made.name)
        self._asked_for = False
        self._gpus = replicas.gpus
        if self._gpus is None:
            some = made.source.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
            self._gpus = 1.0 if some else 0.0

    def check_room(self) -> None:
        """Refuse what this cluster could not hold if nobody else used it."""
        wanted = {"CPU": self._replicas.cpus, "GPU": self._gpus or 0.0}
        nodes = [own["Resources"] for own in self._ray.nodes() if own["Alive"]]
        room = sum(_replicas_that_fit(wanted, node) for node in nodes)
        if room < self._replicas.least:
            has = ", ".join(
                f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes[:8]
            )
            raise SettingError(
                f"{self._replicas.least} replicas of {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs were "
                f"asked for, and the cluster has room for {room:g} ({has}): ask for fewer with --replicas, "
                "give each less with --cpus or --gpus, or add machines"
            )

    def deploy(self, given_up: Callable[[], bool]) -> Any:
        """A handle, once the least number of them is ready."""
        from ray import serve

        self.check_room()
        serve.start(proxy_location="Disabled")  # we listen ourselves
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if self.application in serve.status().applications:
            serve.delete(self.application)  # of a server that was killed
        target = serve.RunTarget(
            self._deployment(serve).bind(self._made), name=self.application, route_prefix=None
        )
        self._asked_for = True
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        ends = time.monotonic() + self._replicas.patience
        while not given_up():
            told = serve.status().applications[self.application]
            if told.status == "RUNNING":
                handle.record_routing_stats.remote().result(timeout_s=60)  # the router is made now
                return handle
            if told.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise SettingError(f"no replica could be started: {_failure_reason(told)}")
            if time.monotonic() > ends:
                raise SettingError(
                    f"the replicas were not ready after {self._replicas.patience:g} seconds: "
                    f"{_failure_reason(told)}; is something else using the cluster (ray status)?"
                )
            time.sleep(DEPLOY_POLL_SECONDS)
        return None

    def delete(self) -> None:
        """Give them back, if they were ever asked for."""
        from ray import serve

        if self._asked_for:
            serve.delete(self.application)

    def _deployment(self, serve: Any) -> Any:
        limits, told = self._made.limits, self._replicas
        number: dict[str, Any] = {"num_replicas": told.least}
        if told.scales:
            number = {
                "autoscaling_config": {
                    "min_replicas": told.least,
                    "max_replicas": told.most,
                    "metrics_interval_s": 1.0,
                    "look_back_period_s": 5.0,
                    "upscale_delay_s": told.up,
                    "downscale_delay_s": told.down,
                    "policy": {
                        "policy_function": POLICY,
                        "policy_kwargs": {"seconds": told.seconds},
                    },
                }
            }
        return serve.deployment(
            ServeReplica,
            name=DEPLOYMENT,
            ray_actor_options={"num_cpus": told.cpus, "num_gpus": self._gpus},
            max_ongoing_requests=limits.queue + limits.slots + SPARE_REQUESTS,
            graceful_shutdown_timeout_s=limits.seconds,  # one that is taken away answers first
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=HEALTH_SECONDS,
            max_constructor_retry_count=MAX_CONSTRUCTOR_TRIES,
            request_router_config={
                "request_router_class": ROUTER,
                "request_router_kwargs": {"routing": told.routing},
                "request_routing_stats_period_s": REPORT_SECONDS,
            },
            logging_config={"enable_access_log": False},
            **number,
        )


def _replicas_that_fit(wanted: dict[str, float], node: dict[str, float]) -> float:
    """How many replicas a node holds."""
    asked = {kind: number for kind, number in wanted.items() if number}
    return min((node.get(kind, 0.0) // number for kind, number in asked.items()), default=math.inf)


def _failure_reason(told: Any) -> str:
    """The last thing that Ray says of an application that is not running."""
    says = [told.message, *(own.message for own in told.deployments.values())]
    lines = [line.strip() for text in says for line in (text or "").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines or ["Ray does not say why"])[-1]


POLL_SECONDS = 0.05  # seconds between two looks at the clock
METRICS_SECONDS = 2.0  # seconds in which a replica must say its counters


class RayFleet:
    """What an engine is to one process: it starts, takes requests, drains and stops."""

    def __init__(self, deployed: RayDeployment, limits: ServerSettings) -> None:
        self._deployed, self._limits = deployed, limits
        self.fault: BaseException | None = None
        self._handle: Any = None  # None: not ready yet
        self._in_hand = 0
        self._ends: float | None = None  # when those in hand are refused
        self._stopped = False
        self._relay: RetryingRelay | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def state(self) -> EngineState:
        """Ready once replicas were; Ray puts others in the place of those that are lost."""
        if self._stopped:
            return "stopped"
        if self._ends is not None:
            return "draining"
        return "starting" if self._handle is None else "ready"

    def start(self) -> None:
        """Deploy, and watch the clock; from the event loop."""
        self._relay = RetryingRelay(self._ask, is_lost)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        Thread(target=self._deploy, name="lastword-deploy", daemon=True).start()

    def drain(self, seconds: float | None = None) -> None:
        """Take no more requests; those in hand have so long (`limits.drain`), then they are refused."""
        self._ends = time.monotonic() + (self._limits.drain if seconds is None else seconds)

    async def stop(self, seconds: float | None = None) -> None:
        """Drain, and wait until that is done."""
        self.drain(seconds)
        if self._watching is not None:
            await self._watching

    def counts(self) -> dict[str, int]:
        """Answers that have a slot and answers that wait, as reported, and replicas that run."""
        reports = known_replicas(self._deployed.application).values()
        return {
            "working": sum(own.working for own in reports),
            "waiting": sum(own.waiting for own in reports),
            "replicas": len(reports),
        }

    async def metrics(self) -> bytes:
        """Counters of all replicas; one that does not say them in time is left out."""
        reports = known_replicas(self._deployed.application)
        told = await asyncio.gather(*(self._told(name) for name in reports))
        texts = {name: text for name, text in zip(reports, told) if text is not None}
        return merge_metrics(texts, reports)

    async def _told(self, name: str) -> bytes | None:
        response = self._handle.metrics.remote(to=name)
        try:
            return await asyncio.wait_for(response, METRICS_SECONDS)
        except Exception as error:
            log.warning("replica %s did not say its counters: %s", name, type(error).__name__)
            return None

    async def answer(self, asked: ForwardedRequest, send: Send) -> None:
        """Have a replica answer."""
        if self._ends is not None or self._stopped:
            raise DrainingError("the server is stopping; ask another one, or this one again later")
        if self._handle is None or self._relay is None:
            raise StartingError("no replica is ready yet; ask again in a while")
        self._in_hand += 1
        try:
            await self._relay(asked, send)
        finally:
            self._in_hand -= 1

    async def _ask(self, asked: ForwardedRequest) -> AsyncIterator[Message]:
        messages = self._handle.options(stream=True).answer.remote(asked)
        ended = False
        try:
            async for message in messages:
                yield message
            ended = True
        finally:
            if not ended:
                messages.cancel()  # whoever asked has left, or the replica is gone

    def _deploy(self) -> None:
        try:
            self._handle = self._deployed.deploy(lambda: self._ends is not None)
        except LastwordError as wrong:
            self.fault = wrong
        except Exception as wrong:
            log.exception("the replicas could not be started")
            self.fault = wrong
        if self.fault is not None:
            self.drain(0.0)

    async def _watch(self) -> None:
        """Until all is over: then those that are left are refused."""
        while self._ends is None or (self._in_hand and time.monotonic() < self._ends):
            await asyncio.sleep(POLL_SECONDS)
        assert self._relay is not None
        self._relay.over.set()
        while self._in_hand and time.monotonic() < self._ends + self._limits.reading:
            await asyncio.sleep(POLL_SECONDS)
        self._stopped = True


def is_lost(error: BaseException) -> bool:
    """Did the replica, or what it had sent, vanish? What its code raised is something else."""
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError

    return isinstance(error, RayError) and not isinstance(error, (RayTaskError, TaskCancelledError))


OPEN_PATHS = {"/openapi.json"}  # beside / and /health: what is answered to anybody
HIDDEN_HEADERS = {b"authorization", b"host", b"connection", b"content-length", b"transfer-encoding"}


@runtime_checkable
class ReplicaSet(Protocol):
    """All replicas, whoever runs them."""

    @property
    def state(self) -> EngineState:
        """Where they stand together."""

    def counts(self) -> dict[str, int]:
        """Answers that have a slot, answers that wait, and replicas."""

    async def metrics(self) -> bytes:
        """Counters of all."""

    async def answer(self, asked: ForwardedRequest, send: Send) -> None:
        """Have one of them answer."""


def create_front_app(
    fleet: ReplicaSet,
    *,
    limits: ServerSettings,
    keys: Collection[str] = (),
    inner_key: str | None = None,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application that listens: it reads requests within limits, asks for the key, and hands them on.

    Replicas never see the keys of clients, only `inner_key`.
    """
    lock = ApiKeys(keys)
    app = LastwordApp(
        title="lastword",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # a replica's
        redirect_slashes=False,
    )
    app.reading, app.hosts = limits.reading, hosts

    @app.get("/health")
    async def health() -> Response:
        state = fleet.state
        reply = HealthResponse(
            ready=state == "ready",
            draining=state == "draining",
            state=state,
            counts=fleet.counts(),
        )
        return JSONResponse(reply.model_dump(), 200 if reply.ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        lock.check(request.headers.get("authorization"))
        return Response(await fleet.metrics(), media_type=METRICS_TYPE)

    @app.get("/")
    async def home() -> Response:
        return HTMLResponse(render_page(limits.recipe))

    async def hand_on(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = request.url.path
        headers = [own for own in scope["headers"] if own[0] not in HIDDEN_HEADERS]
        if path not in OPEN_PATHS:
            lock.check(request.headers.get("authorization"))
        if inner_key is not None:
            headers.append((b"authorization", f"Bearer {inner_key}".encode()))
        asked = ForwardedRequest(
            request.method,
            path,
            scope["query_string"],
            tuple(headers),
            await read_body(request, limits),
        )
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await cancel_on_disconnect(receive, fleet.answer(asked, sending))
        except ClientDisconnected:
            if not begun:
                raise

    app.mount("/", hand_on)
    add_error_handlers(app)
    return app


def serve_on_ray(
    source: ModelSource,
    *,
    name: str,
    replicas: ReplicaSettings,
    address: str | None = None,  # None: a cluster of this machine, which ends with the server
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: ServerSettings = ServerSettings(),
    keys: Collection[str] = (),
    without_key: bool = False,
    say: Callable[[str], None] = log.info,
) -> None:
    """Serve replicas of a model until a signal comes: the first drains, a second one stops."""
    check_exposed(host, keys, without_key)
    with ray_cluster(address, say) as ray:
        inner = secrets.token_urlsafe() if keys else None
        deployed = RayDeployment(
            ray, ReplicaSpec(source.with_absolute_paths(), name, limits, inner), replicas
        )
        deployed.check_room()
        fleet = RayFleet(deployed, limits)
        front = create_front_app(
            fleet, limits=limits, keys=keys, inner_key=inner, hosts=allowed_hosts(host, keys)
        )
        server = build_server(front, fleet, name=name, host=host, port=port, limits=limits, say=say)
        try:
            server.run()
        finally:
            if address is not None:  # else all of Ray ends with us
                deployed.delete()
