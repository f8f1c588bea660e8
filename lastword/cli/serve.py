"""`lastword serve`: answer over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lastword.cli import options
from lastword.cli.options import path_option
from lastword.errors import SettingError
from lastword.serve.settings import (
    ReplicaSettings,
    ServerSettings,
    check_exposed,
    check_free,
    parse_replicas,
    require_serve_extra,
)

_DEFAULT = ServerSettings()
KEY = "LASTWORD_API_KEY"
DEFAULT_MODEL = "tiny-llada-instruct"  # it has a chat template
ENGINES = ("local", "ray")


def serve(
    model: options.Model = DEFAULT_MODEL,
    name: Annotated[
        Optional[str], typer.Option(help="The name of the model in requests. Default: the value of --model.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one and prints it.")
    ] = 8000,
    key_file: Annotated[
        Optional[Path], path_option(f"A file of API keys, one per line; {KEY} holds one as well.")
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Allow other machines without a key.")
    ] = False,
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Answers decoded at once.")
    ] = _DEFAULT.max_batch_size,
    max_reserved_tokens: Annotated[
        Optional[int],
        typer.Option(min=1, help="Tokens that running answers reserve together. Default: no limit."),
    ] = None,
    max_queue_size: Annotated[
        int, typer.Option(min=1, help="Answers that may wait.")
    ] = _DEFAULT.max_queue_size,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Bytes per request.")] = _DEFAULT.max_body_bytes,
    max_prompt_tokens: Annotated[
        Optional[int], typer.Option(min=1, help="Tokens per prompt. Default: the model's limit.")
    ] = None,
    max_choices: Annotated[int, typer.Option(min=1, help="Answers per request.")] = _DEFAULT.max_choices,
    max_horizon: Annotated[
        Optional[int], typer.Option(min=1, help="Slots per answer. Default: the model's default.")
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Longest time per request in seconds; `timeout` in a request shortens it.")
    ] = _DEFAULT.request_timeout,
    client_timeout: Annotated[
        float, typer.Option(help="Seconds for a client to send a request, and to read what it was sent.")
    ] = _DEFAULT.client_timeout,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds to finish running answers when the server stops.")
    ] = _DEFAULT.drain_timeout,
    named_recipes: Annotated[
        bool, typer.Option("--named-recipes", help="Accept recipes by name only, not as JSON.")
    ] = False,
    recipe: Annotated[
        Optional[str],
        typer.Option(
            parser=options.as_name_or_path,
            metavar="NAME|PATH",
            help="Of requests without one: careful, fast, paper, fixed, or a JSON file. Default: careful.",
        ),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = "auto",
    engine: Annotated[
        str, typer.Option(help="local: this process; ray: replicas on a Ray cluster.")
    ] = "local",
    replicas: Annotated[
        Optional[str],
        typer.Option(help="With ray: a number (2), or a minimum and maximum (1:8). Default: 1."),
    ] = None,
    address: Annotated[
        Optional[str],
        typer.Option(help="With ray: auto or HOST:PORT of a cluster. Default: a new local one."),
    ] = None,
    cpus: Annotated[
        Optional[float], typer.Option(min=0, help="With ray: CPUs per replica. Default: 1.")
    ] = None,
    gpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="With ray: GPUs per replica. Default: 1 if the cluster has any."),
    ] = None,
    routing: Annotated[
        Optional[str],
        typer.Option(help="With ray: predicted (least predicted work, the default) or random."),
    ] = None,
    target_load: Annotated[
        Optional[float],
        typer.Option(help="With ray: seconds of predicted work per replica. Default: 10."),
    ] = None,
    upscale_delay: Annotated[
        Optional[float],
        typer.Option(help="With ray: seconds of too few replicas before one is added. Default: 10."),
    ] = None,
    downscale_delay: Annotated[
        Optional[float],
        typer.Option(help="With ray: seconds of too many replicas before one is removed. Default: 120."),
    ] = None,
) -> None:
    """Serve a model: the OpenAI API, /v1/lengths, /health, /metrics, and a page at /.

    Needs the extra `serve`, and `ray` for replicas. SIGTERM or Ctrl-C drains, a second one stops.

    Examples:

      lastword serve

      LASTWORD_API_KEY=... lastword serve --model GSAI-ML/LLaDA-8B-Instruct --host 0.0.0.0

      lastword serve --recipe fast --max-batch-size 32

      lastword serve --engine ray --replicas 2
    """
    ray_options: dict[str, Any] = {
        "cpus": cpus,
        "gpus": gpus,
        "routing": routing,
        "target_load": target_load,
        "upscale_delay": upscale_delay,
        "downscale_delay": downscale_delay,
    }
    ray_options = {name: value for name, value in ray_options.items() if value is not None}
    _check_engine(engine, replicas=replicas, address=address, **ray_options)
    settings = ServerSettings(
        max_batch_size=max_batch_size,
        max_reserved_tokens=max_reserved_tokens,
        max_queue_size=max_queue_size,
        max_body_bytes=max_body_bytes,
        max_prompt_tokens=max_prompt_tokens,
        max_choices=max_choices,
        max_horizon=max_horizon,
        request_timeout=request_timeout,
        client_timeout=client_timeout,
        drain_timeout=drain_timeout,
        named_recipes_only=named_recipes,
        recipe=None if recipe is None else options.read_recipe(recipe),
    )
    keys = _read_keys(key_file)
    from lastword.engines.local import ModelSource

    check_exposed(host, keys, without_key)
    check_free(host, port)  # a large model takes minutes to load
    source = ModelSource(model, device, dtype, options.calibration_source(calibration), weights)
    common: dict[str, Any] = {
        "name": name or model,
        "host": host,
        "port": port,
        "settings": settings,
        "keys": keys,
        "print_line": typer.echo,
    }
    if engine == "ray":
        minimum, maximum = parse_replicas(replicas or "1")
        replica_settings = ReplicaSettings(minimum, maximum, **ray_options)
        with require_serve_extra("ray", "serve"):
            from lastword.serve.ray import serve_on_ray
        serve_on_ray(source, replicas=replica_settings, address=address, **common)
        return
    with require_serve_extra("serve"):
        from lastword.serve.app import create_server
    create_server(source.load(), **common).run()


def _check_engine(engine: str, **ray_options: object) -> None:
    """Raise SettingError for an engine that cannot serve, and for options of another engine."""
    if engine not in ENGINES:
        raise SettingError(f"engine {engine!r} cannot serve; use --engine {' or '.join(ENGINES)}")
    given = [name for name, value in ray_options.items() if value is not None]
    if engine != "ray" and given:
        option = f"--{given[0].replace('_', '-')}"
        raise SettingError(f"{option} was given, which needs --engine ray; add that, or leave {option} out")


def _read_keys(path: Path | None) -> list[str]:
    """Return the keys in the environment and in a file."""
    keys = [os.environ[KEY]] if os.environ.get(KEY) else []
    if path is not None:
        try:
            lines = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"the key file {path} cannot be read ({error}); give a file with one key per line, or leave "
                "--key-file out"
            ) from error
        file_keys = [line.strip() for line in lines if line.strip()]
        if not file_keys:
            raise SettingError(f"the key file {path} holds no key; write one per line, or leave it out")
        keys += file_keys
    return keys
