"""Settings of the server and its replicas, and checks of the address that it listens on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE
from socket import SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket
from typing import TYPE_CHECKING

from lastword.errors import ExtraError, SettingError, install_command
from lastword.validation import check_int, check_number, check_type

if TYPE_CHECKING:
    from lastword.recipe.recipe import Recipe

MAX_TIMEOUT = 86_400  # seconds


@dataclass(frozen=True)
class ServerSettings:
    """Limits and defaults of requests, and the size of the running batch."""

    max_batch_size: int = 16
    max_reserved_tokens: int | None = None  # of all running rows; None: max_batch_size * max_seq_len
    max_queue_size: int = 256  # answers that may wait
    max_body_bytes: int = 1_000_000
    max_prompt_tokens: int | None = None  # None: as many as the model has positions for
    max_choices: int = 16  # answers per request: prompts times n
    max_horizon: int | None = None  # slots per answer; None: the model's default
    request_timeout: float = 600.0  # seconds; the default and the maximum of `timeout`
    client_timeout: float = 30.0  # seconds for a client to send a body, and to read what it was sent
    drain_timeout: float = 30.0  # seconds to finish running answers when the server stops
    named_recipes_only: bool = False
    recipe: Recipe | None = None  # of requests without one; None: the default recipe

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue_size", "max_body_bytes", "max_choices"):
            check_int("ServerSettings", name, getattr(self, name), minimum=1)
        for name in ("max_reserved_tokens", "max_prompt_tokens", "max_horizon"):
            if getattr(self, name) is not None:
                check_int("ServerSettings", name, getattr(self, name), minimum=1)
        for name in ("request_timeout", "client_timeout", "drain_timeout"):
            check_number("ServerSettings", name, getattr(self, name), above=0, maximum=MAX_TIMEOUT)
        if self.recipe is not None:
            from lastword.recipe.recipe import Recipe  # imports torch

            check_type("ServerSettings", "recipe", self.recipe, Recipe, 'a Recipe, such as Recipe.named("fast")')


ROUTINGS = ("predicted", "random")
MAX_REPLICAS = 10_000


@dataclass(frozen=True)
class ReplicaSettings:
    """Number, resources and scaling of the replicas on a Ray cluster."""

    min_replicas: int = 1
    max_replicas: int = 1
    cpus: float = 1.0  # logical CPUs per replica, by which Ray places it
    gpus: float | None = None  # per replica; None: one if the cluster has any
    routing: str = "predicted"
    target_load: float = 10.0  # seconds of predicted work per replica
    upscale_delay: float = 10.0  # seconds of too few replicas before one is added
    downscale_delay: float = 120.0  # seconds of too many replicas before one is removed
    startup_timeout: float = 600.0  # seconds in which all replicas must be ready

    def __post_init__(self) -> None:
        for name in ("min_replicas", "max_replicas"):
            check_int("ReplicaSettings", name, getattr(self, name), minimum=1, maximum=MAX_REPLICAS)
        if self.max_replicas < self.min_replicas:
            raise SettingError(
                f"replicas {self.min_replicas}:{self.max_replicas} were given; the second number must not be smaller"
            )
        for name in ("cpus", "upscale_delay", "downscale_delay", *(() if self.gpus is None else ("gpus",))):
            check_number("ReplicaSettings", name, getattr(self, name), minimum=0)
        for name in ("target_load", "startup_timeout"):
            check_number("ReplicaSettings", name, getattr(self, name), above=0)
        if self.routing not in ROUTINGS:
            raise SettingError(f"routing {self.routing!r} was given; allowed: {', '.join(ROUTINGS)}")


def parse_replicas(text: str) -> tuple[int, int]:
    """Return the minimum and maximum of `2` or `1:8`."""
    match = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", text.strip())
    if match is None:
        raise SettingError(f"replicas {text!r} were given; write a number (2) or a minimum and maximum (1:8)")
    return int(match[1]), int(match[2] or match[1])


def check_exposed(host: str, keys: Collection[str], without_key: bool) -> None:
    """Raise SettingError if other machines can reach the address without an API key."""
    if not keys and not without_key and not is_loopback(host):
        raise SettingError(
            f"the address {host} can be reached from other machines and no key was set: give one "
            "(LASTWORD_API_KEY, or --key-file FILE), or confirm with --without-key"
        )


def check_free(host: str, port: int) -> None:
    """Raise SettingError if this process cannot listen on the port."""
    try:
        for family, kind, protocol, _, address in getaddrinfo(host, port, type=SOCK_STREAM):
            with socket(family, kind, protocol) as probe:
                probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno not in (EADDRINUSE, EACCES):
            return  # a name may have unusable addresses; the server fails if all are
        raise SettingError(
            f"cannot listen on port {port} of {host} ({error.strerror}); give another, such as "
            f"--port {port + 1 if 1024 <= port < 65535 else 8000}, or --port 0 for any free port"
        ) from error


def allowed_hosts(host: str, keys: Collection[str]) -> set[str]:
    """Return the allowed Host headers; empty: any.

    A server on loopback without a key accepts only local names, so that a page of another site cannot reach
    it through a host name that it points to 127.0.0.1.
    """
    return {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) and not keys else set()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def require_serve_extra(*extras: str) -> Iterator[None]:
    """Raise an error that names the extras to install if an import fails."""
    try:
        yield
    except ImportError as error:
        raise ExtraError(f"serving needs {error.name}, which is not installed: {install_command(*extras)}") from error
