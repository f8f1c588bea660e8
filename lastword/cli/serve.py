"""`lastword serve`: serve a model over HTTP."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer import Option

from lastword.cli import options
from lastword.cli.options import CHAT_MODEL, ModelOptions, path_option
from lastword.errors import SettingError, import_extra
from lastword.serve.settings import (
    ReplicaSettings,
    ServerLimits,
    ServerSettings,
    check_exposed,
    check_free,
    parse_replicas,
)

KEY = "LASTWORD_API_KEY"
ENGINES = ("local", "ray")
SERVER_PACKAGES = ("fastapi", "prometheus_client", "sse_starlette", "uvicorn")
RECIPE = "Recipe of requests that name none: careful (default), fast, paper, fixed, or a JSON file."


@dataclass(frozen=True)
class RayOptions:
    """The options that need --engine ray: replicas, their resources and autoscaling."""

    PANEL: ClassVar[str] = "Replicas (--engine ray)"

    replicas: Annotated[
        str | None, Option(help="Number of replicas (2), or minimum and maximum (1:8). Default: 1.")
    ] = None
    address: Annotated[
        str | None, Option(help="Ray cluster: auto, HOST:PORT, or local (a new one). Default: a new one.")
    ] = None
    cpus: Annotated[float | None, Option(min=0, help="CPUs per replica. Default: 1.")] = None
    gpus: Annotated[float | None, Option(min=0, help="GPUs per replica. Default: 1 if there are any.")] = None
    http_servers: Annotated[
        int | None, Option(min=1, help="Number of HTTP processes, which share the port. Default: 1.")
    ] = None
    target_load: Annotated[
        float | None, Option(help="Predicted seconds of work per replica, for autoscaling. Default: 10.")
    ] = None
    upscale_delay: Annotated[
        float | None, Option(help="Seconds of high load before a replica is added. Default: 10.")
    ] = None
    downscale_delay: Annotated[
        float | None, Option(help="Seconds of low load before a replica is removed. Default: 120.")
    ] = None

    def check(self, engine: str) -> ReplicaSettings:
        """Return the settings of the Ray replicas; raise SettingError if an option is set and `engine` is not ray."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if engine != "ray" and given:
            option = f"--{next(iter(given)).replace('_', '-')}"
            raise SettingError(f"{option} was given, which needs --engine ray; add that, or leave {option} out")
        minimum, maximum = parse_replicas(given.pop("replicas", "1"))
        given.pop("address", None)
        return ReplicaSettings(minimum, maximum, **given)


def serve(
    model_options: ModelOptions,
    limits: ServerLimits,
    ray_options: RayOptions,
    name: Annotated[str | None, Option(help=options.NAMES)] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    key_file: Annotated[Path | None, path_option(f"File with one API key per line, in addition to {KEY}.")] = None,
    without_key: Annotated[
        bool, Option("--without-key", help="Accept connections from other machines without an API key.")
    ] = False,
    named_recipes: Annotated[
        bool, Option("--named-recipes", help="Accept recipes by name only: no JSON, and no length in requests.")
    ] = False,
    recipe: Annotated[str | None, Option(parser=options.as_name_or_path, metavar="NAME|PATH", help=RECIPE)] = None,
    access_log: Annotated[
        str, Option(help="Log of requests on standard error: off, text (name=value) or json.")
    ] = "off",
    allow_origin: Annotated[
        list[str] | None,
        Option(metavar="ORIGIN", help="Website whose scripts may call the server; repeatable; * for all."),
    ] = None,
    calibration: options.CalibrationFile = "auto",
    import_modules: options.Imports = None,
    engine: Annotated[
        str, Option(help="Where answers are decoded: local (this process) or ray (replicas on a cluster).")
    ] = "local",
) -> None:
    """Serve a model with the OpenAI API, and with a page at / to try it.

    Requires the extra `serve`, and `ray` for replicas. After the first SIGTERM or Ctrl-C, the server finishes its
    answers; the second one stops it at once.

    Examples:

        lastword serve
        lastword serve --recipe fast --batch-size 32
        LASTWORD_API_KEY=... lastword serve --host 0.0.0.0 \\
          --model GSAI-ML/LLaDA-8B-Instruct
        lastword serve --engine ray --replicas 2
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if engine not in ENGINES:
        raise SettingError(f"engine {engine!r} cannot serve; use --engine {' or '.join(ENGINES)}")
    replicas = ray_options.check(engine)
    settings = ServerSettings(
        **vars(limits),
        named_recipes_only=named_recipes,
        recipe=None if recipe is None else options.read_recipe(recipe),
        access_log=access_log,
        allowed_origins=tuple(allow_origin or ()),
    )
    keys = _read_keys(key_file)
    check_exposed(host, keys, without_key)
    check_free(host, port)  # before loading the model, which may take minutes
    source = model_options.source(calibration, CHAT_MODEL)
    common: dict[str, Any] = {"name": name or source.name, "host": host, "port": port, "keys": keys}
    common |= {"settings": settings, "print_line": typer.echo}
    for package in SERVER_PACKAGES:
        import_extra(package, "serve", "lastword serve")
    from lastword.serve.access_log import configure_access_log

    configure_access_log(access_log)
    if engine == "ray":
        import_extra("ray.serve", "ray", "--engine ray")
        from lastword.serve.ray import serve_on_ray

        serve_on_ray(source, replicas=replicas, address=ray_options.address, **common)
        return
    from lastword.serve.app import create_server

    create_server(source.load(), **common).run()


def _read_keys(path: Path | None) -> list[str]:
    """Return the API keys: the one in the environment variable KEY, and those in a file, one per line."""
    keys = [os.environ[KEY]] if os.environ.get(KEY) else []
    if path is None:
        return keys
    try:
        lines = map(str.strip, path.read_text("utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"the key file {path} cannot be read ({error}); give a file with one key per line"
        ) from error
    file_keys = [*filter(None, lines)]
    if not file_keys:
        raise SettingError(f"the key file {path} holds no key; write one per line, or leave it out")
    return keys + file_keys
