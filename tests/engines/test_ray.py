"""Workers in a Ray cluster: the records of this process, whatever is killed, and wrong settings."""

import os
import signal
import socket
import sys

import pytest

from lastword.engines import ModelSource, RayWorkers, WorkerPool
from lastword.engines.workers import connect, import_ray
from lastword.errors import EngineError, ExtraError
from tests.engines.interrupted import JOURNAL, NAME, ROOT, check_resumed, evaluate_into, processes, run_and_kill


def test_the_error_without_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraError, match=r"needs the package ray.*pip install .*\[ray\]'"):
        RayWorkers(ModelSource("toy"))


class FakeRay:
    """A Ray of another version."""

    def is_initialized(self):
        return False

    def init(self, **settings):
        raise RuntimeError("Version mismatch: the cluster was started with Ray 2.50.0, Python 3.10.2")


def test_another_version_of_ray_is_an_error():
    with pytest.raises(EngineError, match=r"Version mismatch.*must have one version everywhere"):
        connect(FakeRay(), "auto")


def test_files_of_ray_are_private(tmp_path):
    class Ray(FakeRay):
        def init(self, **settings):
            (tmp_path / "auth_token").write_text("secret")

    mask = os.umask(0o022)
    try:
        assert connect(Ray(), "local")
        (tmp_path / "later").write_text("")
    finally:
        os.umask(mask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("auth_token", "later")] == [0o600, 0o644]


@pytest.mark.parametrize("address", ["nowhere", "host:port", "10.0.0.1:", "10.0.0.1:99999"])
def test_a_malformed_address_is_an_error(address):
    with pytest.raises(EngineError, match="give auto, local, or HOST:PORT"):
        connect(FakeRay(), address)


def test_an_address_where_nothing_listens_is_an_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"nothing listens at {address}"):
            connect(FakeRay(), address)


def test_actors_get_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ModelSource("mine").with_absolute_paths() == ModelSource(str(tmp_path / "mine"))
    source = ModelSource("tiny-llada-base", calibration=None)
    assert source.with_absolute_paths() == source


full = pytest.mark.full


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return evaluate_into(tmp_path_factory.mktemp("local") / JOURNAL)


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray", reason="needs the package ray")
    import_ray()
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.second_node = cluster.add_node(num_cpus=2)
        yield cluster
    finally:
        cluster.shutdown()


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def actor(cluster):
    raylets = raylet(cluster.head_node), raylet(cluster.second_node)
    return next(
        pid
        for pid, (parent, command, _) in processes().items()
        if parent in raylets and command.startswith("ray::ModelWorker")
    )


@full
@pytest.mark.parametrize("killed", ["nothing", "actor", "raylet"])
def test_two_nodes_give_the_records_of_one_process(cluster, expected, tmp_path, killed):
    victims = []

    def kill(answered, total):
        if answered and not victims:
            victims.append(
                {"nothing": lambda: 0, "actor": lambda: actor(cluster), "raylet": lambda: raylet(cluster.second_node)}[
                    killed
                ]()
            )
            if victims[0]:
                os.kill(victims[0], signal.SIGKILL)

    with WorkerPool(RayWorkers(ModelSource(NAME, device="cpu"), 2, address=cluster.address)) as pool:
        assert evaluate_into(tmp_path / JOURNAL, pool.model_info, pool, kill) == expected
    assert victims


@full
def test_a_killed_driver_loses_nothing(cluster, expected, tmp_path):
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "2", "--device", "cpu"]
    run_and_kill(options, tmp_path)
    check_resumed(options, tmp_path, expected)


@full
def test_a_worker_without_its_model_is_an_error(cluster):
    with (
        WorkerPool(RayWorkers(ModelSource("no/such/folder"), 1, address=cluster.address)) as pool,
        pytest.raises(EngineError, match=r"worker 0 cannot load the model: there is no folder"),
    ):
        _ = pool.model_info


@full
def test_the_error_without_free_resources_lists_them(cluster):
    backend = RayWorkers(ModelSource("toy"), 1, threads=64, address=cluster.address)
    message = r"actors that take 64 CPU each \(free now: 3 CPU"
    with WorkerPool(backend, timeout=3.0) as pool, pytest.raises(EngineError, match=message):
        _ = pool.model_info
