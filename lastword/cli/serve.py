"""`lastword serve`: answer over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lastword.cli import options
from lastword.cli.options import path_option
from lastword.errors import SettingError
from lastword.serve.settings import ServerSettings

_USUAL = ServerSettings()
KEY = "LASTWORD_API_KEY"
SERVED = "tiny-llada-instruct"  # it can chat
ENGINES = ("local", "ray")


def serve(
    model: options.Model = SERVED,
    name: Annotated[
        Optional[str], typer.Option(help="What requests call the model. Default: as --model says.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one and says which.")
    ] = 8000,
    key_file: Annotated[
        Optional[Path], path_option(f"A file of API keys, one a line; {KEY} holds one as well.")
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Let other machines in without a key.")
    ] = False,
    slots: Annotated[int, typer.Option(min=1, help="Answers decoded at once.")] = _USUAL.slots,
    columns: Annotated[
        Optional[int],
        typer.Option(min=1, help="Columns they may reserve together. Default: all that they could."),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Answers that may wait.")] = _USUAL.queue,
    body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = _USUAL.body,
    prompt: Annotated[Optional[int], typer.Option(min=1, help="Tokens of a prompt.")] = None,
    answers: Annotated[int, typer.Option(min=1, help="Answers of a request.")] = _USUAL.answers,
    horizon: Annotated[
        Optional[int], typer.Option(min=1, help="Slots of a canvas. Default: the model's own.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Longest that a request may take; `timeout` asks for less.")
    ] = _USUAL.seconds,
    reading: Annotated[
        float, typer.Option(help="Seconds in which a client must read what it was sent.")
    ] = _USUAL.reading,
    drain: Annotated[
        float, typer.Option(help="Seconds that answers are given once the server is told to stop.")
    ] = _USUAL.drain,
    named_only: Annotated[
        bool, typer.Option("--named-recipes", help="Take recipes by name alone, none as JSON.")
    ] = False,
    recipe: Annotated[
        Optional[str],
        typer.Option(
            parser=options.as_name_or_path,
            metavar="NAME|PATH",
            help="Of requests that name none: careful, fast, paper, fixed, or a file of JSON. "
            "Default: careful.",
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
        typer.Option(help="With ray: how many (2), or the least and the most (1:8). Default: 1."),
    ] = None,
    address: Annotated[
        Optional[str],
        typer.Option(help="With ray: auto or host:port of a cluster. Default: one of its own."),
    ] = None,
    cpus: Annotated[
        Optional[float], typer.Option(min=0, help="With ray: CPUs of a replica. Default: 1.")
    ] = None,
    gpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="With ray: GPUs of a replica. Default: 1 where there are any."),
    ] = None,
    routing: Annotated[
        Optional[str],
        typer.Option(help="With ray: predicted (the default: least predicted work) or random."),
    ] = None,
    work: Annotated[
        Optional[float],
        typer.Option(help="With ray: predicted seconds of work a replica should have. Default: 10."),
    ] = None,
    up: Annotated[
        Optional[float],
        typer.Option(help="With ray: seconds of too much work before one is added. Default: 10."),
    ] = None,
    down: Annotated[
        Optional[float],
        typer.Option(help="With ray: seconds of too little before one leaves. Default: 120."),
    ] = None,
) -> None:
    """Serve a model: the OpenAI API, /v1/lengths, /health, /metrics, and a page at /.

    Needs the extra `serve`, and `ray` for replicas. SIGTERM or Ctrl-C drains, a second one stops.

    Examples:

      lastword serve

      LASTWORD_API_KEY=... lastword serve --model GSAI-ML/LLaDA-8B-Instruct --host 0.0.0.0 --slots 32

      lastword serve --recipe fast --slots 32

      lastword serve --engine ray --replicas 2
    """
    given = {
        "replicas": replicas, "address": address, "cpus": cpus, "gpus": gpus, "routing": routing,
        "work": work, "up": up, "down": down,
    }  # fmt: skip

    _check_engine(engine, given)
    limits = ServerSettings(
        slots,
        columns,
        queue,
        body,
        prompt,
        answers,
        horizon,
        seconds,
        reading,
        drain,
        not named_only,
        None if recipe is None else options.read_recipe(recipe),
    )
    keys = _keys(key_file)
    from lastword.engines.local import ModelSource
    from lastword.serve.settings import check_exposed, check_free, require_serve_extra

    check_exposed(host, keys, without_key)
    check_free(host, port)  # a large model takes minutes to load
    source = ModelSource(model, device, dtype, None if calibration == "none" else calibration, weights)
    if engine == "ray":
        with require_serve_extra():
            from lastword.serve.ray import serve_on_ray
        from lastword.serve.settings import ReplicaSettings, parse_replicas

        least, most = parse_replicas(replicas or "1")
        told = {"cpus": cpus, "gpus": gpus, "routing": routing, "seconds": work}
        told |= {"up": up, "down": down}
        serve_on_ray(
            source,
            name=name or model,
            replicas=ReplicaSettings(least, most, **_said(told)),
            address=address,
            host=host,
            port=port,
            limits=limits,
            keys=keys,
            without_key=without_key,
            say=typer.echo,
        )
        return
    with require_serve_extra():
        from lastword.serve.app import serve as run

    run(
        source.load(),
        name=name or model,
        host=host,
        port=port,
        limits=limits,
        keys=keys,
        without_key=without_key,
        say=typer.echo,
    )


def _check_engine(engine: str, given: dict[str, Any]) -> None:
    """Refuse an engine that does not serve, and options of another one."""
    if engine not in ENGINES:
        raise SettingError(f"there is no engine {engine!r} that serves; give --engine {' or '.join(ENGINES)}")
    if engine != "ray" and (said := _said(given)):
        name = next(iter(said))
        raise SettingError(
            f"--{name} was given, which goes with --engine ray; add that, or leave --{name} out"
        )


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """Options that were given."""
    return {name: value for name, value in given.items() if value is not None}


def _keys(file: Path | None) -> list[str]:
    """Keys of the environment and of a file."""
    keys = [os.environ[KEY]] if os.environ.get(KEY) else []
    if file is not None:
        try:
            lines = file.read_text("utf-8-sig").splitlines()  # some editors mark UTF-8
        except (OSError, UnicodeDecodeError) as wrong:
            raise SettingError(
                f"the key file {file} could not be read ({wrong}); give one with a key a line, or leave "
                "--key-file out"
            ) from wrong
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise SettingError(f"the key file {file} holds no key; write one a line, or leave it out")
        keys += found
    return keys
