"""Settings of the server: its limits, its replicas, and where it may listen."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE
from socket import SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket
from typing import TYPE_CHECKING, Any

from lastword.errors import ExtraError, SettingError, install_command
from lastword.validation import check_int, check_number, check_type

if TYPE_CHECKING:
    from lastword.recipe.recipe import Recipe


@dataclass(frozen=True)
class ServerSettings:
    """What requests may ask for, what they get unasked, and how much is taken on."""

    slots: int = 16  # rows decoded at once
    columns: int | None = None  # that rows at work may reserve together; None: slots times the model's own
    queue: int = 256  # answers that may wait
    body: int = 1_000_000  # bytes of a request
    prompt: int | None = None  # tokens; None: what the model has positions for
    answers: int = 16  # of one request: prompts times n
    horizon: int | None = None  # slots of a canvas; None: the model's
    seconds: float = 600.0  # of a request that names no deadline, and at most of one that does
    reading: float = 30.0  # seconds in which a reader must take what was sent
    drain: float = 30.0  # seconds that answers at work are given once the server stops
    recipes: bool = True  # may requests bring recipes of their own, beyond the named ones?
    recipe: Recipe | None = None  # of a request that names none; None: the default

    def __post_init__(self) -> None:
        for name in ("slots", "queue", "body", "answers"):
            check_int("Limits", name, getattr(self, name), minimum=1)
        for name in ("columns", "prompt", "horizon"):
            if getattr(self, name) is not None:
                check_int("Limits", name, getattr(self, name), minimum=1)
        for name in ("seconds", "reading", "drain"):
            check_number("Limits", name, getattr(self, name), above=0, maximum=86_400)
        if self.recipe is not None:
            from lastword.recipe.recipe import Recipe  # torch comes with it

            check_type("Limits", "recipe", self.recipe, Recipe, 'a Recipe, such as Recipe.named("fast")')


ROUTINGS = ("predicted", "random")
MAX_REPLICAS = 10_000


@dataclass(frozen=True)
class ReplicaSettings:
    """What an operator says of replicas; every value can be set on the command line."""

    least: int = 1
    most: int = 1  # more than `least`: as many as the work wants
    cpus: float = 1.0  # of each; logical ones, by which Ray places it
    gpus: float | None = None  # of each; None: one, where the cluster has any
    routing: str = "predicted"
    seconds: float = 10.0  # of predicted work that a replica should have, where their number changes
    up: float = 10.0  # seconds that there must be too few before one is added
    down: float = 120.0  # seconds that there must be too many before one is taken away
    patience: float = 600.0  # seconds in which all must be ready, weights loaded

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            check_int("Replicas", name, getattr(self, name), minimum=1, maximum=MAX_REPLICAS)
        if self.most < self.least:
            raise SettingError(
                f"replicas {self.least}:{self.most} were given; the second number is the larger one"
            )
        check_number("Replicas", "cpus", self.cpus, minimum=0)
        if self.gpus is not None:
            check_number("Replicas", "gpus", self.gpus, minimum=0)
        for name in ("seconds", "patience"):
            check_number("Replicas", name, getattr(self, name), above=0)
        for name in ("up", "down"):
            check_number("Replicas", name, getattr(self, name), minimum=0)
        if self.routing not in ROUTINGS:
            raise SettingError(f"routing {self.routing!r} was given; allowed: {', '.join(ROUTINGS)}")

    @property
    def scales(self) -> bool:
        """Does their number follow the work?"""
        return self.most > self.least


def parse_replicas(text: str) -> tuple[int, int]:
    """The least and the most of `2`, or of `1:8`."""
    found = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", text.strip())
    if found is None:
        raise SettingError(
            f"replicas {text!r} were given; write a number (2), or the least and the most (1:8)"
        )
    return int(found[1]), int(found[2] or found[1])


LOAD_METRIC = "predicted_seconds"  # what replicas report, and the policy reads


def desired_replicas(seconds: float, target: float, now: int, least: int, most: int) -> int:
    """Replicas for which the work in hand is `target` seconds each.

    Fewer than now only where those that stay would have less than half of that: a replica that comes and
    goes loads its weights each time.
    """
    enough = math.ceil(seconds / target)
    if enough < now:
        enough = min(now, max(enough, math.ceil(2 * seconds / target)))
    return min(max(enough, least, 1), most)


class AutoscalingPolicy:
    """Ray Serve's policy: the sum of what replicas predict, by the seconds that each should have."""

    def __init__(self, seconds: float) -> None:
        self.target = seconds

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and nothing to remember; `context` is Ray's AutoscalingContext."""
        reported: Mapping[Any, float] = (context.aggregated_metrics or {}).get(LOAD_METRIC, {})
        least, most = (
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
        )
        seconds = sum(reported.values(), 0.0)
        return desired_replicas(seconds, self.target, context.target_num_replicas, least, most), {}


def check_exposed(host: str, keys: Collection[str], without_key: bool) -> None:
    """Refuse an address that others reach, where no key was set and nobody said that it is meant."""
    if not keys and not without_key and not is_loopback(host):
        raise SettingError(
            f"the address {host} can be reached from other machines and no key was set: give one "
            "(LASTWORD_API_KEY, or --key-file FILE), or say --without-key"
        )


def check_free(host: str, port: int) -> None:
    """Refuse an address where another process listens, or where this one may not."""
    try:
        for family, kind, protocol, _, address in getaddrinfo(host, port, type=SOCK_STREAM):
            with socket(family, kind, protocol) as tried:
                tried.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as refused:
        if refused.errno not in (EADDRINUSE, EACCES):
            return  # some addresses of a name may be missing; the server says if all of them are
        raise SettingError(
            f"port {port} of {host} cannot be listened at ({refused.strerror}); give another, such as "
            f"--port {port + 1 if 1024 <= port < 65535 else 8000}, or --port 0 for any that is free"
        ) from refused


def allowed_hosts(host: str, keys: Collection[str]) -> set[str]:
    """By what names a server may be called that others do not reach and that asks for no key; else any."""
    return {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) and not keys else set()


@contextmanager
def require_serve_extra() -> Iterator[None]:
    """Say what to install where something is missing."""
    try:
        yield
    except ImportError as missing:
        raise ExtraError(
            f"serving needs {missing.name}, which is not installed: {install_command('serve')}"
        ) from missing


def is_loopback(host: str) -> bool:
    """Is this an address that only this machine reaches?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
