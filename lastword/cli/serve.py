"""`lastword serve`: serve a model over HTTP."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from lastword.cli import options
from lastword.cli.options import CHAT_MODEL, ModelOptions, path_option
from lastword.errors import SettingError, import_extra
from lastword.io.files import file_errors
from lastword.serve.settings import ReplicaSettings, ServerOptions, ServerSettings, check_exposed, check_free

KEY = "LASTWORD_API_KEY"
ENGINES = ("local", "ray")
SERVER_PACKAGES = ("fastapi", "prometheus_client", "sse_starlette", "uvicorn")
RECIPE = "Recipe of requests that name none: careful (default), fast, paper, fixed, or a JSON file."


def serve(
    model_options: ModelOptions,
    server_options: ServerOptions,
    replicas: ReplicaSettings,
    name: Annotated[str | None, Option(help=options.NAMES)] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and prints it.")] = 8000,
    key_file: Annotated[Path | None, path_option(f"File with one API key per line, in addition to {KEY}.")] = None,
    without_key: Annotated[
        bool, Option("--without-key", help="Accept connections from other machines without an API key.")
    ] = False,
    recipe: Annotated[str | None, Option(parser=options.as_name_or_path, metavar="NAME|PATH", help=RECIPE)] = None,
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
    if engine != "ray" and (given := options.given_options(replicas)):
        raise SettingError(f"{given[0]} was given, which needs --engine ray; add that, or leave {given[0]} out")
    if engine == "ray" and model_options.threads is not None:
        raise SettingError(f"--threads {model_options.threads} was given with --engine ray; use --cpus")
    settings = ServerSettings(**vars(server_options), recipe=None if recipe is None else options.read_recipe(recipe))
    keys = _read_keys(key_file)
    check_exposed(host, keys, without_key)
    check_free(host, port)  # before loading the model, which may take minutes
    source = model_options.source(calibration, CHAT_MODEL)
    common: dict[str, Any] = {"name": name or source.name, "host": host, "port": port, "keys": keys}
    common |= {"settings": settings, "print_line": typer.echo}
    for package in SERVER_PACKAGES:
        import_extra(package, "serve", "lastword serve")
    from lastword.serve.access_log import configure_access_log

    configure_access_log(settings.access_log)
    if engine == "ray":
        import_extra("ray.serve", "ray", "--engine ray")
        from lastword.serve.ray import serve_on_ray

        serve_on_ray(source, replicas=replicas, **common)
        return
    from lastword.serve.app import create_server

    create_server(source.load(), **common).run()


def _read_keys(path: Path | None) -> list[str]:
    """Return the API keys: the one in the environment variable KEY, and those in a file, one per line."""
    keys = [os.environ[KEY]] if os.environ.get(KEY) else []
    if path is None:
        return keys
    with file_errors(f"the key file {path} cannot be read", "give a file with one key per line"):
        file_keys = [*filter(None, map(str.strip, path.read_text("utf-8-sig").splitlines()))]
    if not file_keys:
        raise SettingError(f"the key file {path} holds no key; write one per line, or leave it out")
    return keys + file_keys
