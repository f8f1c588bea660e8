"""Workers that are Ray actors: the records of this process, whatever is killed; and what can be wrong."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from lastword.engines.local import ModelSource
from lastword.engines.pool import WorkerPool
from lastword.engines.ray import RayWorkers, connect, import_ray
from lastword.errors import EngineError, ExtraError
from tests.engines.commands import (
    JOURNAL,
    NAME,
    children,
    evaluated,
    given,
    killed_half_way,
    records,
)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraError, match=r"needs the package ray.*pip install .*\[ray\]'"):
        RayWorkers(ModelSource("toy"))


class Strange:
    """Ray, as far as it is asked here."""

    def is_initialized(self):
        return False

    def init(self, **settings):
        raise RuntimeError("Version mismatch: the cluster was started with Ray 2.50.0, Python 3.10.2")


def test_another_version_of_ray_is_told():
    with pytest.raises(EngineError, match=r"Version mismatch.*must have one version everywhere"):
        connect(Strange(), "auto")


@pytest.mark.parametrize("address", ["nowhere", "host:port", "10.0.0.1:", "10.0.0.1:99999"])
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(EngineError, match="give auto, local, or HOST:PORT"):
        connect(Strange(), address)


def test_an_address_where_nobody_listens_is_told():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"nobody listens at {address}"):
            connect(Strange(), address)


def test_a_folder_is_named_in_full(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ModelSource("mine").with_absolute_paths() == ModelSource(str(tmp_path / "mine"))
    assert ModelSource("tiny-llada-base", calibration=None).with_absolute_paths() == ModelSource(
        NAME, calibration=None
    )


full = pytest.mark.full


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return evaluated(tmp_path_factory.mktemp("local") / JOURNAL)


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="needs the package ray")
    import_ray()
    from ray.cluster_utils import Cluster

    root = str(Path(__file__).parent.parent.parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = root if before is None else f"{root}{os.pathsep}{before}"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.second = made.add_node(num_cpus=2)
        yield made
    finally:
        made.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def actors(cluster):
    nodes = [cluster.head_node, cluster.second]
    return [
        pid
        for node in nodes
        for pid, name in children(raylet(node)).items()
        if name.startswith("ray::ModelActor")
    ]


def broken(pool, journal, kill):
    """The records of an evaluation in whose middle something is killed."""
    done = []

    def progress(answered, total):
        if answered and not done:
            done.append(kill())

    found = evaluated(journal, pool.model, pool, progress)
    assert done[0] is not None
    return found


@full
@pytest.mark.parametrize("what", ["nothing", "actor", "raylet"])
def test_two_nodes_give_the_records_of_one_process(cluster, unbroken, tmp_path, what):
    def kill():
        victim = {"nothing": 0, "actor": actors(cluster)[0], "raylet": raylet(cluster.second)}[what]
        if victim:
            os.kill(victim, signal.SIGKILL)
        return victim

    with WorkerPool(RayWorkers(ModelSource(NAME, device="cpu"), 2, address=cluster.address)) as pool:
        _ = pool.model
        assert broken(pool, tmp_path / JOURNAL, kill) == unbroken


@full
def test_a_killed_driver_goes_on_where_it_was(cluster, unbroken, tmp_path):
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "2", "--device", "cpu"]
    killed_half_way(options, tmp_path)
    done = given(options, tmp_path)
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / JOURNAL) == unbroken


@full
def test_a_worker_without_the_model_says_so(cluster):
    with (
        WorkerPool(RayWorkers(ModelSource("no/such/folder"), 1, address=cluster.address)) as pool,
        pytest.raises(EngineError, match=r"worker 0 cannot load the model: there is no folder"),
    ):
        _ = pool.model


@full
def test_no_room_is_told_with_what_is_free(cluster):
    places = RayWorkers(ModelSource("toy"), 1, threads=64, address=cluster.address)
    words = r"actors that take 64 CPU each \(free now: 3 CPU"
    with WorkerPool(places, timeout=3.0) as pool, pytest.raises(EngineError, match=words):
        _ = pool.model
