"""Replicas on Ray without a cluster: scaling, retries, and errors at the start."""

import asyncio
import sys
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import RayServeException

from lastword.cli import main
from lastword.engines.local import ModelSource
from lastword.errors import ExtraError, SettingError
from lastword.recipe.recipe import Recipe
from lastword.serve import ray as ray_module
from lastword.serve.app import create_app
from lastword.serve.autoscaling import LOAD_METRIC, AutoscalingPolicy
from lastword.serve.engine import ServerEngine
from lastword.serve.metrics import EngineMetrics, ReplicaStatus, merge_metrics
from lastword.serve.protocol import CompletionRequest
from lastword.serve.ray import MAX_TRIES, ReplicatedService, ServeReplica, failure_reason, ray_cluster
from lastword.serve.request import ServerError
from lastword.serve.scheduler import EngineLoad
from lastword.serve.serving import ModelService
from lastword.serve.settings import ReplicaSettings, ServerSettings, parse_replicas
from tests.serve.conftest import wait_until
from tests.serve.helpers import MARK, Misbehaving, outcome, request_of

# ---- number of replicas ----


def replicas_for(seconds, current):
    context = SimpleNamespace(
        aggregated_metrics={LOAD_METRIC: {"a": seconds}},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        target_num_replicas=current,
    )
    return AutoscalingPolicy(target_load=10.0)(context)[0]


@pytest.mark.parametrize(
    ("seconds", "current", "number"),
    [
        (0.0, 1, 1),
        (10.0, 1, 1),
        (10.1, 1, 2),
        (45.0, 2, 5),
        (1e6, 2, 8),  # the maximum
        (12.0, 4, 3),  # two would be near their limit
        (19.0, 4, 4),
        (0.0, 4, 1),  # the minimum
    ],
)
def test_replicas_for_a_load(seconds, current, number):
    assert replicas_for(seconds, current) == number


def test_the_number_of_replicas_does_not_oscillate():
    for tenths in range(1, 900):
        current = 1
        numbers = [current := replicas_for(tenths / 10, current) for _ in range(4)]
        assert len({*numbers[1:]}) == 1


def test_the_policy_adds_up_reports():
    context = SimpleNamespace(
        aggregated_metrics={LOAD_METRIC: {"a": 12.0, "b": 7.0}},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=10,
        target_num_replicas=2,
    )
    assert AutoscalingPolicy(target_load=5.0)(context) == (4, {})
    context.aggregated_metrics, context.target_num_replicas = None, 1
    assert AutoscalingPolicy(target_load=5.0)(context) == (1, {})


def test_replica_settings():
    assert parse_replicas("2") == (2, 2)
    assert parse_replicas(" 1:8 ") == (1, 8)
    for text in ("", "two", "1:", ":8", "-1", "1:2:3", "1.5", "0", "3:2"):
        with pytest.raises(SettingError, match="1:8"):
            parse_replicas(text)
    for wrong in ({"replicas": "3:2"}, {"cpus": -1.0}, {"gpus": -1.0}, {"target_load": 0.0}, {"http_servers": 0}):
        with pytest.raises(SettingError):
            ReplicaSettings(**wrong)


# ---- the service ----


class Items:
    """The items that a replica yields, then an error; None: a replica that hangs."""

    def __init__(self, items, error=None):
        self._items, self._error, self.cancelled = items, error, False

    async def __aiter__(self):
        for item in self._items:
            yield item
        if self._error is not None:
            raise self._error

    def cancel(self):
        self.cancelled = True


class Handle:
    """A handle whose replicas return scripted items, one script per call."""

    def __init__(self, *scripts, statuses=()):
        self.scripts, self.calls, self.broadcasts, self.statuses = [*scripts], [], [], statuses
        self.call = SimpleNamespace(remote=self._call)

    def options(self, *, stream):
        return self

    def _call(self, method, *arguments):
        self.calls.append(self.scripts.pop(0))
        return self.calls[-1]

    def broadcast(self, method, *arguments):
        self.broadcasts.append((method, *arguments))

        async def results_async(**options):
            if isinstance(self.statuses, Exception):
                raise self.statuses
            return list(self.statuses)

        return SimpleNamespace(results_async=results_async)


LOST = ActorDiedError()
BODY = CompletionRequest(model="toy", prompt="abc")


def service_of(handle, **settings):
    service = ReplicatedService(ModelSource("toy", "cpu"), "toy", ServerSettings(**settings), ReplicaSettings())
    service._handle = handle
    return service


def answered(*scripts):
    """Return the chunks, the number of calls, and the error."""
    handle, chunks, error = Handle(*scripts), [], None

    async def answer():
        async for chunk in service_of(handle).answer(BODY):
            chunks.append(chunk)

    try:
        asyncio.run(answer())
    except Exception as raised:
        error = raised
    assert all(items.cancelled for items in handle.calls)
    return chunks, len(handle.calls), error


def test_a_lost_replica_is_replaced_by_another_before_the_first_chunk():
    assert answered(Items([1, 2])) == ([1, 2], 1, None)
    assert answered(Items([], LOST), Items([1, 2])) == ([1, 2], 2, None)
    assert answered(Items([], RayServeException("no replica")), Items([1])) == ([1], 2, None)


@pytest.mark.parametrize("scripts", [[Items([1], LOST)], [Items([], LOST)] * MAX_TRIES], ids=["begun", "all"])
def test_a_stream_that_has_begun_is_not_retried_and_neither_is_the_last_try(scripts):
    chunks, calls, error = answered(*scripts)
    assert (len(chunks), calls) == (len(scripts[0]._items), len(scripts))
    assert (error.code, error.kind.status, error.kind.retry_after, error.kind.retryable) == (
        "replica_lost", 503, 1, True,
    )  # fmt: skip


@pytest.mark.parametrize("cause", [ServerError("full", "overloaded", retry_after=7), ZeroDivisionError("a fault")])
def test_an_error_of_the_service_is_raised_as_it_is(cause):
    chunks, calls, error = answered(Items([1], RayTaskError("call", "trace", cause).as_instanceof_cause()))
    assert (chunks, calls) == ([1], 1)
    assert type(error) is type(cause)
    assert getattr(error, "kind", None) == getattr(cause, "kind", None)


def test_errors_survive_pickling():
    import pickle

    for error in (ServerError("full", "overloaded", retry_after=7), ServerError("no", "not_found", "model")):
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.code, copy.param, copy.kind, str(copy)) == (error.code, error.param, error.kind, str(error))


def test_requests_before_and_after_the_replicas_are_ready():
    async def codes():
        service, found = service_of(None), []
        for prepare in (lambda: None, service.drain):
            prepare()
            with pytest.raises(ServerError) as refused:
                await service.lengths(BODY)
            found.append((service.state, refused.value.code))
        return found

    assert asyncio.run(codes()) == [("starting", "starting"), ("draining", "draining")]


def test_replicas_refuse_what_is_unfinished_after_the_drain_deadline():
    class Draining(Items):
        async def __aiter__(self):
            yield 1
            while not handle.broadcasts:
                await asyncio.sleep(0.01)
            raise RayTaskError("call", "", ServerError("", "draining")).as_instanceof_cause()

    handle = Handle(Draining([]))

    async def drained():
        service = service_of(handle, client_timeout=1.0)
        chunks = service.answer(BODY)
        await anext(chunks)
        watching = asyncio.create_task(service._watch())
        service.drain(0.0)
        assert service.state == "draining"
        with pytest.raises(ServerError) as refused:
            await anext(chunks)
        await watching
        return refused.value.code, handle.broadcasts, service.state

    assert asyncio.run(drained()) == ("draining", [("drain", 0.0)], "stopped")


def test_health_and_metrics_of_all_replicas():
    pages = [EngineMetrics(), EngineMetrics()]
    pages[0].outcomes.labels("answered").inc()
    for name in ("answered", "failed"):
        pages[1].outcomes.labels(name).inc()
    loads = [EngineLoad(2, 1, 1.5, 10.0), EngineLoad(0, 0, 0.0, 0.0)]
    statuses = [ReplicaStatus(name, load, page.text()) for name, load, page in zip(("aa", "bb"), loads, pages)]

    async def ask():
        handle = Handle(statuses=[*statuses, LOST])
        service = service_of(handle)
        health, page = await service.health(), await service.metrics()
        handle.statuses = TimeoutError()
        kept = (await service.health()).counts
        handle.statuses = RayServeException("no replica")
        return health.counts, page.decode(), kept, (await service.health()).counts

    counts, page, kept, none = asyncio.run(ask())
    assert counts == kept == {"working": 2, "waiting": 1, "replicas": 2}
    assert none == {"working": 0, "waiting": 0, "replicas": 0}
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert page.count("# HELP lastword:request_ended_total") == 1
    ended = {
        (sample.labels["outcome"], sample.labels["replica"]): sample.value
        for sample in families["lastword:request_ended"].samples
        if sample.name.endswith("_total")
    }
    assert ended == {("answered", "aa"): 1, ("answered", "bb"): 1, ("failed", "bb"): 1}
    assert [sample.value for sample in families["lastword:replicas"].samples] == [2]
    work = families["lastword:predicted_work_seconds"].samples
    assert {sample.labels["replica"]: sample.value for sample in work} == {"aa": 1.5, "bb": 0}
    assert merge_metrics([])


@asynccontextmanager
async def application(toy, **options):
    settings = ServerSettings(drain_timeout=5.0)
    replica = ServeReplica.__new__(ServeReplica)
    replica._engine = ServerEngine(toy, settings)
    replica._service = ModelService(replica._engine, "toy")
    replica._engine.start()

    class Stream:
        def __init__(self, items):
            self._items = items

        def __aiter__(self):
            return self._items

        def cancel(self):
            pass

    handle = Handle()
    handle.call = SimpleNamespace(remote=lambda *arguments: Stream(replica.call(*arguments)))
    app = create_app(service_of(handle), name="toy", settings=settings, **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client
    await replica._engine.stop(0.0)


def test_the_application_is_the_same_over_replicas(toy):
    body = {"model": "toy", "prompt": "abc", "length": "fixed:8"}

    async def ask():
        async with application(toy) as client:
            return (
                await client.post("/v1/completions", json=body),
                await client.post("/v1/completions", json={**body, "stream": True}),
                await client.post("/v1/completions", json={**body, "length": "fixed:99"}),
                await client.post("/v1/lengths", json={"prompt": "abc"}),
                await client.get("/v1/models"),
            )

    whole, streamed, wrong, lengths, models = asyncio.run(ask())
    assert whole.json()["choices"][0]["text"]
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "length")
    assert lengths.json()["mean"] > 1
    assert models.json()["data"][0]["lastword"]["default_max_new_tokens"] == 64


def test_a_replica_whose_forward_pass_hangs_is_unhealthy(monkeypatch):
    class Hanging(Misbehaving):
        resumed = threading.Event()

        def act(self, logits, tokens, marked):
            if marked.any():
                self.resumed.wait(30)
            return logits

    monkeypatch.setattr("lastword.serve.engine.STALL_SECONDS", 0.2)
    replica, model = ServeReplica.__new__(ServeReplica), Hanging()

    def is_healthy():
        try:
            replica.check_health()
        except RuntimeError:
            return False
        return True

    async def states():
        replica._engine = ServerEngine(model, ServerSettings(drain_timeout=5.0))
        replica._engine.start()
        reading = asyncio.create_task(outcome(replica._engine.submit([request_of("abc", Recipe.named("fast"))])))
        states = [is_healthy(), await reading and is_healthy()]
        await asyncio.sleep(0.5)
        states.append(is_healthy())  # idle for longer than the limit
        hanging = asyncio.create_task(outcome(replica._engine.submit([request_of(MARK, Recipe.named("fast"))])))
        await asyncio.to_thread(wait_until, lambda: not is_healthy(), 20)
        with pytest.raises(RuntimeError, match="hangs in a forward pass"):
            replica.check_health()
        model.resumed.set()
        await hanging
        await asyncio.to_thread(wait_until, is_healthy)
        await replica._engine.stop(0.0)
        return states

    assert asyncio.run(states()) == [True] * 3


# ---- the start ----


def test_old_packages(monkeypatch):
    monkeypatch.setattr(sys.modules["ray"], "__version__", "2.9.3")
    old = pytest.raises(ExtraError, match=r"Ray 2\.9\.3 is installed, and serving needs 2\.60")
    with old, ray_cluster(None, print):
        pass


@pytest.fixture
def deployment(monkeypatch):
    """Return the deployment on a cluster with these nodes."""

    def deploy(nodes, replicas):
        cluster = SimpleNamespace(
            cluster_resources=lambda: {"GPU": sum(node.get("GPU", 0) for node in nodes)},
            nodes=lambda: [{"Alive": True, "Resources": node} for node in nodes],
        )
        monkeypatch.setattr(ray_module, "ray", cluster)
        return ReplicatedService(ModelSource("toy"), "a/b c", ServerSettings(), replicas)

    return deploy


def test_room_is_counted_per_machine(deployment):
    small = [{"CPU": 3.0}, {"CPU": 3.0}]
    deployment(small, ReplicaSettings("2", cpus=2.0)).check_room()
    with pytest.raises(SettingError, match="has room for 2"):  # not 3, of 6 CPUs
        deployment(small, ReplicaSettings("3", cpus=2.0)).check_room()
    cards = [{"CPU": 64.0, "GPU": 1.0}]
    with pytest.raises(SettingError, match="2 replicas of 1 CPUs and 1 GPUs"):
        deployment(cards, ReplicaSettings("2")).check_room()
    deployment(cards, ReplicaSettings("2", gpus=0.5)).check_room()
    deployment(small, ReplicaSettings("1:99", cpus=2.0)).check_room()  # more machines may come
    assert deployment(small, ReplicaSettings()).application == "lastword-a-b-c"


def test_a_machine_with_another_version_is_refused():
    with pytest.raises(SettingError, match="same version on every machine"):
        ServeReplica(ModelSource("toy"), "toy", ServerSettings(), "0.0.0")


def test_the_reason_of_a_failure_is_the_last_error():
    trace = 'Traceback:\n  File "a.py", line 3\nlastword.errors.CheckpointError: there is no model\n'
    status = SimpleNamespace(message="Failed.", deployments={"replica": SimpleNamespace(message=trace)})
    assert failure_reason(status) == "lastword.errors.CheckpointError: there is no model"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--replicas", "2"], "--replicas was given, which needs --engine ray"),
        (["--engine", "dask"], "engine 'dask' cannot serve"),
        (["--engine", "ray", "--replicas", "many"], "write a number (2)"),
        (["--engine", "ray", "--http-servers", "0"], "--http-servers"),
        (["--engine", "ray", "--host", "0.0.0.0"], "no key was set"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(options, problem, capsys, monkeypatch):
    monkeypatch.setattr(ray_module, "serve_on_ray", lambda *args, **options: pytest.fail("it started"))
    monkeypatch.setattr(sys, "argv", ["lastword", "serve", "--model", "toy", *options])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code != 0
    assert problem in " ".join(capsys.readouterr().err.split())
