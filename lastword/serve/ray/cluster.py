"""Cluster: Ray, started here or joined, or a sentence that says why not."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lastword.errors import ExtraError, SettingError
from lastword.extras import install

OLDEST = (2, 60)  # of Ray: routers and policies of others' have moved between its versions
STORE = 100_000_000  # bytes of Ray's object store where we start it: texts pass through it, no weights
REACHING = 5.0  # seconds in which somebody must listen at an address
NAMESPACE = "lastword"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@contextmanager
def cluster(address: str | None, say: Callable[[str], None]) -> Iterator[Any]:
    """The module `ray`, connected: to a cluster of this machine that ends with us, or to the one named.

    Whatever is already there is left as it is; no more is stopped than what was started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else whatever thread of Serve's still asks for something after the end starts another Ray.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if address is not None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # a cluster has it on, unless told otherwise
    ray = imported()
    if address is not None:
        check_reached(address, ray)
        say(f"lastword joins the Ray cluster {address}")
    try:
        _connect(ray, address)
        yield ray
    finally:
        ray.shutdown()  # of a cluster that was joined it only lets go


def imported() -> Any:
    """Ray with Serve, of a version that was tried."""
    try:
        import ray
        import ray.serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    except ImportError as missing:
        raise ExtraError(
            f"--engine ray needs {missing.name}, which is not installed: {install('ray', 'serve')}"
        ) from missing
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ExtraError(
            f"Ray {ray.__version__} is installed; serving on it needs {oldest} or newer: pip install "
            f"'ray[serve]>={oldest}'"
        )
    return ray


def check_reached(address: str, ray: Any) -> None:
    """Refuse an address where nobody listens: Ray would try it for minutes."""
    if address == "auto":
        found = os.environ.get("RAY_ADDRESS") or _current()
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


def _current() -> str | None:
    """Where the cluster of this machine was last."""
    from ray._private.utils import read_ray_address  # no public name for it

    return read_ray_address()


def _check_listens(host: str, port: int, address: str) -> None:
    try:
        socket.create_connection((host.strip("[]"), port), REACHING).close()
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
            ray.init("local", include_dashboard=False, object_store_memory=STORE, **shared)
        else:
            ray.init(address, **shared)
    except Exception as wrong:
        raise refused(address, wrong) from wrong


def refused(address: str | None, wrong: Exception) -> SettingError:
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
            f"RAY_AUTH_TOKEN_PATH; for a cluster without one set RAY_AUTH_MODE=disabled ({_first(text)})"
        )
    if address is not None and "ailed to connect" in text:  # somebody listens there: that was looked at
        return SettingError(
            f"what listens at {at} did not let this process in: is it a Ray cluster, and is its token here "
            "(~/.ray/auth_token of its head, or RAY_AUTH_TOKEN_PATH)? For a cluster without one set "
            "RAY_AUTH_MODE=disabled"
        )
    return SettingError(f"Ray could not be reached at {at}: {_first(text) or type(wrong).__name__}")


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
