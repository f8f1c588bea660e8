"""A cluster that is not there, not ours, or too small: a sentence each."""

import socket
import sys
from types import SimpleNamespace

import pytest

from lastword.cli import main
from lastword.engines.local import ModelSource
from lastword.errors import ExtraError, SettingError
from lastword.serve import ray as cluster
from lastword.serve.ray import RayDeployment, ReplicaSpec, ServeReplica, _failure_reason
from lastword.serve.settings import ReplicaSettings, ServerSettings

pytest.importorskip("ray")

OWN = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.1.2.3"))


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraError, match=r"pip install .*\[ray,serve\]'"):
        cluster.import_ray()


def test_a_ray_that_is_too_old_is_refused(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "__version__", "2.9.3")
    with pytest.raises(ExtraError, match=r"Ray 2\.9\.3 is installed; serving on it needs 2\.60"):
        cluster.import_ray()


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:", "head:99999", ":6379"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(SettingError, match="allowed: auto, or host:port"):
        cluster.check_address(address, OWN)


def test_where_nobody_listens_no_minutes_are_spent():
    with pytest.raises(SettingError, match=r"no Ray cluster answers at 127\.0\.0\.2"):
        cluster.check_address(f"127.0.0.2:{free_port()}", OWN)


def test_auto_needs_a_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_current_address", lambda: None)
    with pytest.raises(SettingError, match="no Ray runs on this machine"):
        cluster.check_address("auto", OWN)


def test_a_head_on_loopback_is_explained(monkeypatch):
    """Ray takes 127.0.0.1 for the machine's own address."""
    reached = []

    def listens(host, port, address):
        reached.append(host)
        if host == "10.1.2.3":
            raise SettingError("nobody")

    monkeypatch.setattr(cluster, "_check_listens", listens)
    with pytest.raises(SettingError, match=r"127\.0\.0\.2 for this machine alone"):
        cluster.check_address("127.0.0.1:6379", OWN)
    assert reached == ["127.0.0.1", "10.1.2.3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Version mismatch: The cluster was started with:\n  Ray: 2.59.0", "same Ray and Python"),
        ("Unauthenticated: no token", "auth_token"),
        ("Failed to connect to Ray cluster at head:6379", "is its token here"),
        ("something else\nand more", "something else"),
    ],
)
def test_why_ray_did_not_take_us(text, says):
    assert says in str(cluster.connection_error("head:6379", RuntimeError(text)))


def sized(nodes, replicas):
    ray = SimpleNamespace(
        cluster_resources=lambda: {"GPU": sum(node.get("GPU", 0) for node in nodes)},
        nodes=lambda: [{"Alive": True, "Resources": node} for node in nodes],
    )
    return RayDeployment(ray, ReplicaSpec(ModelSource("toy"), "a/b c", ServerSettings(), None), replicas)


def test_room_is_counted_machine_by_machine():
    small = [{"CPU": 3.0}, {"CPU": 3.0}]
    sized(small, ReplicaSettings(2, 2, cpus=2.0)).check_room()
    with pytest.raises(SettingError, match="has room for 2"):  # not 3, of 6 CPUs
        sized(small, ReplicaSettings(3, 3, cpus=2.0)).check_room()
    cards = [{"CPU": 64.0, "GPU": 1.0}]
    with pytest.raises(SettingError, match="2 replicas of 1 CPUs and 1 GPUs"):
        sized(cards, ReplicaSettings(2, 2)).check_room()
    sized(cards, ReplicaSettings(2, 2, gpus=0.5)).check_room()
    sized(small, ReplicaSettings(1, 99, cpus=2.0)).check_room()  # more may come
    assert sized(small, ReplicaSettings()).application == "lastword-a-b-c"


def test_a_machine_with_another_version_says_so():
    with pytest.raises(SettingError, match="install the same version on every machine"):
        ServeReplica(ReplicaSpec(ModelSource("toy"), "toy", ServerSettings(), None, version="0.0.0"))


def test_the_error_of_a_replica_is_found_in_what_ray_says():
    told = SimpleNamespace(
        message="Deploying app failed.",
        deployments={
            "replica": SimpleNamespace(
                message='Traceback (most recent call last):\n  File "a.py", line 3\n'
                "lastword.errors.CheckpointError: there is no model 'x'\n"
            )
        },
    )
    assert _failure_reason(told) == "lastword.errors.CheckpointError: there is no model 'x'"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--replicas", "2"], "--replicas was given, which goes with --engine ray"),
        (["--engine", "dask"], "there is no engine 'dask' that serves"),
        (["--engine", "ray", "--replicas", "many"], "write a number (2)"),
        (["--engine", "ray", "--routing", "nearest"], "allowed: predicted, random"),
        (["--engine", "ray", "--host", "0.0.0.0"], "no key was set"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(options, says, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lastword", "serve", "--model", "toy", *options])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code != 0
    assert says in " ".join(capsys.readouterr().err.split())
