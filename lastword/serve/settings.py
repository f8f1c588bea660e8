"""Settings of the server and its replicas, and checks of the address that the server listens on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE
from os import strerror
from socket import AF_INET, AF_INET6, AddressFamily, create_server
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import Option

from lastword.errors import SettingError
from lastword.validation import check_choice, check_fields, check_int, check_number, checked_field

if TYPE_CHECKING:
    from lastword.recipe.recipe import Recipe

MAX_TIMEOUT = 86_400  # seconds
ORIGINS = "Website whose scripts may call the server; repeatable; * for all."
RESERVED = "Maximum tokens of all running answers with their prompts. Default: --batch-size times the model's context."


def _count(default: int | None) -> Any:
    return checked_field(default, check_int, minimum=1)


def _seconds(default: float) -> Any:
    return checked_field(default, check_number, above=0, maximum=MAX_TIMEOUT)


def _amount(default: float | None) -> Any:
    return checked_field(default, check_number, minimum=0)


@dataclass(frozen=True)
class ServerOptions:
    """The settings of a server that are options of `lastword serve` under the same names."""

    PANEL: ClassVar[str] = "Requests and limits"

    max_batch_size: Annotated[int, Option("--batch-size", min=1, help="Answers decoded at the same time.")] = _count(16)
    max_reserved_tokens: Annotated[int | None, Option(min=1, help=RESERVED)] = _count(None)
    max_queue_size: Annotated[int, Option(min=1, help="Maximum waiting answers and length probes.")] = _count(256)
    max_body_bytes: Annotated[int, Option(min=1, help="Maximum bytes of a request.")] = _count(1_000_000)
    max_prompt_tokens: Annotated[
        int | None, Option(min=1, help="Maximum tokens of a prompt. Default: the model's context.")
    ] = _count(None)
    max_choices: Annotated[int, Option(min=1, help="Maximum answers per request.")] = _count(16)
    max_horizon: Annotated[int | None, Option(min=1, help="Slots per answer. Default: the model's.")] = _count(None)
    timeout: Annotated[float, Option(help="Maximum seconds per request, waiting included.")] = _seconds(600.0)
    client_timeout: Annotated[float, Option(help="Seconds for clients to send requests or read data.")] = _seconds(30.0)
    drain_timeout: Annotated[float, Option(help="Seconds to finish answers when the server stops.")] = _seconds(30.0)
    max_connections: Annotated[int, Option(min=1, help="Maximum number of open connections.")] = _count(4096)
    max_connections_per_client: Annotated[
        int | None, Option("--max-per-client", min=1, help="Maximum connections per address. Default: half of all.")
    ] = _count(None)
    named_recipes_only: Annotated[
        bool, Option("--named-recipes", help="Accept recipes by name only: no JSON, and no length in requests.")
    ] = False
    access_log: Annotated[str, Option(help="Log of requests on standard error: off, text (name=value) or json.")] = (
        checked_field("off", check_choice, "off", "text", "json")
    )
    allowed_origins: Annotated[list[str] | None, Option("--allow-origin", metavar="ORIGIN", help=ORIGINS)] = None

    def __post_init__(self) -> None:
        check_fields(self)
        for origin in self.allowed_origins or ():
            if origin != "*" and not re.fullmatch(r"https?://[a-z0-9.\-\[\]:]+", origin):
                allowed = "scheme and host in lower case (http://localhost:3000), or * for all websites"
                raise SettingError(f"the origin {origin!r} was given; write {allowed}")


@dataclass(frozen=True)
class ServerSettings(ServerOptions):
    """All settings of a server: its options, with its default recipe as an object."""

    recipe: Recipe | None = None  # for requests that name no recipe; None: the default recipe


@dataclass(frozen=True)
class ReplicaSettings:
    """Number, resources and scaling of the replicas on a Ray cluster; each field is an option of `lastword serve`."""

    PANEL: ClassVar[str] = "Replicas (--engine ray)"

    replicas: Annotated[str, Option(help="Number of replicas (2), or minimum and maximum (1:8).")] = "1"
    address: Annotated[
        str | None, Option(help="Ray cluster: auto, HOST:PORT, or local (a new one). Default: a new one.")
    ] = None
    cpus: Annotated[float, Option(min=0, help="CPUs per replica.")] = _amount(1.0)
    gpus: Annotated[float | None, Option(min=0, help="GPUs per replica. Default: 1 if there are any.")] = _amount(None)
    http_servers: Annotated[int, Option(min=1, help="Number of HTTP processes, which share the port.")] = _count(1)
    target_load: Annotated[float, Option(help="Predicted seconds of work per replica, for scaling.")] = _seconds(10.0)
    upscale_delay: Annotated[float, Option(help="Seconds of high load before adding a replica.")] = _amount(10.0)
    downscale_delay: Annotated[float, Option(help="Seconds of low load before removing a replica.")] = _amount(120.0)
    startup_timeout: Annotated[float, Option(help="Seconds until the first replicas must be ready.")] = _seconds(600.0)

    def __post_init__(self) -> None:
        check_fields(self)
        parse_replicas(self.replicas)


def parse_replicas(text: str) -> tuple[int, int]:
    """Parse a number of replicas (`2`) or its bounds (`1:8`); raise SettingError for other text."""
    match = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text.strip())
    minimum, maximum = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= minimum <= maximum:
        raise SettingError(f"replicas {text!r} were given; write a number (2), or a minimum and a maximum (1:8)")
    return minimum, maximum


def check_exposed(host: str, keys: Collection[str], without_key: bool) -> None:
    """Raise SettingError if other machines can reach the host without a key, unless `without_key` is set."""
    if not keys and not without_key and not is_loopback(host):
        raise SettingError(
            f"the address {host} can be reached from other machines and no key was set: give one "
            "(LASTWORD_API_KEY, or --key-file FILE), or confirm with --without-key"
        )


def check_free(host: str, port: int) -> None:
    """Raise SettingError if this process cannot listen on the port."""
    try:
        create_server((host, port), family=address_family(host)).close()
    except OSError as error:
        if error.errno not in (EADDRINUSE, EACCES):
            return  # the server raises other errors when it starts
        raise SettingError(
            f"cannot listen on port {port} of {host} ({strerror(error.errno)}); give another, such as "
            f"--port {port + 1 if 1024 <= port < 65535 else 8000}, or --port 0 for any free port"
        ) from error


def address_family(host: str) -> AddressFamily:
    """Return the family of an IP address or host name."""
    return AF_INET6 if ":" in host else AF_INET


def allowed_hosts(host: str, keys: Collection[str]) -> set[str]:
    """Return the allowed Host headers; an empty set allows all.

    A server on loopback without a key accepts only local names. This prevents DNS rebinding, in which another site
    points its host name to 127.0.0.1.
    """
    return {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) and not keys else set()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
