"""The router as Ray calls it, with replicas that are only numbers."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.serve._private.common import DeploymentID
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from lastword.serve.ray_router import LeastLoadedRouter
from lastword.serve.scheduler import ReplicaReport


class Replica(RunningReplica):
    """Without an actor."""

    def __init__(self, name, report):
        self._replica_info = SimpleNamespace(
            replica_id=ReplicaID(name, DeploymentID("replica", "test")),
            routing_stats={} if report is None else report.to_data(),
        )

    @property
    def name(self):
        return self.replica_id.unique_id


def replica(name, report=None):
    return Replica(name, report)


class Router(LeastLoadedRouter):
    """Without what Ray puts around it."""

    def __init__(self, **settings):
        self.initialize_state(seed=0, **settings)


def pending(number, loop, **kwargs):
    metadata = SimpleNamespace(internal_request_id=str(number))
    return PendingRequest([], kwargs, metadata, future=loop.create_future())


def chosen(router, replicas, count, over=()):
    """Who is asked first, request by request; those in `over` are done before the next one comes."""

    async def run():
        loop, names = asyncio.get_running_loop(), []
        for number in range(count):
            own = pending(number, loop)
            ranks = await router.choose_replicas(replicas, own)
            assert sorted(rank[0].name for rank in ranks) == sorted(one.name for one in replicas)
            assert own.routing_context.should_backoff
            names.append(ranks[0][0].name)
            if number in over:
                router.on_request_completed(ranks[0][0].replica_id, str(number))
        return names

    return asyncio.run(run())


def test_a_burst_between_two_reports_is_spread():
    """All of it sees the same reports: what was handed over since counts."""
    two = [replica("a", ReplicaReport()), replica("b", ReplicaReport())]
    names = chosen(Router(), two, 20)
    assert names.count("a") == names.count("b") == 10


def test_who_has_more_work_gets_fewer():
    two = [
        replica("a", ReplicaReport(columns=900.0, each=100.0, asking=0)),
        replica("b", ReplicaReport(columns=0.0, each=100.0, asking=0)),
    ]
    names = chosen(Router(), two, 9)
    assert names == ["b"] * 9
    assert set(chosen(Router(), two, 30)[12:]) == {"a", "b"}


def test_who_is_done_is_counted_no_more():
    two = [replica("a", ReplicaReport(columns=150.0, each=100.0)), replica("b", ReplicaReport(each=100.0))]
    assert chosen(Router(), two, 8, over=range(8)) == ["b"] * 8


def test_who_left_before_it_was_sent_is_counted_no_more():
    router, two = (
        Router(),
        [replica("a", ReplicaReport(columns=1.5, each=1.0)), replica("b", ReplicaReport(each=1.0))],
    )

    async def run():
        loop = asyncio.get_running_loop()
        for number in range(6):
            own = pending(number, loop)
            ranks = await router.choose_replicas(two, own)
            assert ranks[0][0].name == "b"
            own.future.cancel()

    asyncio.run(run())


def test_at_random_work_does_not_count():
    two = [replica("a", ReplicaReport(columns=1e9, each=1.0)), replica("b", ReplicaReport())]
    names = chosen(Router(routing="random"), two, 200)
    assert 60 < names.count("a") < 140


def test_a_call_that_names_its_replica_goes_there_and_is_no_work():
    router, two = Router(), [replica("a"), replica("b")]

    async def run():
        loop = asyncio.get_running_loop()
        own = await router.choose_replicas(two, pending(1, loop, to="b"))
        gone = await router.choose_replicas(two, pending(2, loop, to="c"))
        return own, gone

    own, gone = asyncio.run(run())
    assert [[rank.name for rank in ranks] for ranks in own] == [["b"]]
    assert gone == []
    assert router._in_hand() == {}
