"""Measure the server under load: `python -m benchmarks.serving --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.passes.replay import kept_pairs
from benchmarks.serving.figures import Line, Record, table
from benchmarks.serving.load import ARMS, MIX, arm_of, make_requests, requests_of
from benchmarks.serving.run import Arrivals, in_process, over_http
from benchmarks.serving.served import served
from benchmarks.serving.shaped import CANVAS, shaped_model, shaped_requests
from lastword.engines.base import environment
from lastword.serve.settings import ServerSettings
from lastword.tasks import BENCHMARKS


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description="Measure the server under load, arm by arm."
    )
    add = parser.add_argument
    add("--model", default="tiny-llada-base", help="an embedded model")
    add("--shape", help="a model with random weights of this shape and replayed lengths: llada-8b, tiny or a folder")
    add("--arms", nargs="+", default=[*ARMS], help=f"{', '.join(ARMS)}, overtaking=N")
    add("--requests", type=int, default=1000)
    add("--clients", type=int, default=64)
    add("--batch-size", type=int, default=ServerSettings().max_batch_size)
    add("--mix", nargs="+", default=[f"{name}={n}" for name, n in MIX.items()], help="recipes and weights")
    add("--families", nargs="+", default=[*BENCHMARKS], choices=BENCHMARKS)
    add("--prompts", type=int, default=60, help="different prompts per family")
    add("--timeout", type=float, help="seconds per request; those that take longer are counted as expired")
    add("--share", type=float, help="Poisson arrivals at this share of the throughput of a closed loop of `predicted`")
    add("--http", action="store_true", help="over HTTP, with the server in a separate process")
    add("--check", type=int, default=20, help="answers per arm that are also decoded alone")
    add("--predicted", type=int, default=256, help="with --shape: mean predicted slots")
    add("--shortest", type=int, default=200, help="with --shape: tokens of the shortest prompt")
    add("--tokens-per-pass", type=float, default=3.25, help="with --shape: tokens per forward pass")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--seed", type=int, default=0)
    add("--note", action="append", default=[], help="a sentence for the record, such as other work on the machine")
    add("--out", type=Path, help="file of the record")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> Record:
    """Measure every arm, write the record and print its table."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    model: Any = (
        lastword.load(options.model, device=options.device, dtype=options.dtype)
        if options.shape is None
        else shaped_model(options.shape, options.device, options.dtype)
    )
    rate, lines = None, list[Line]()
    if options.share is not None:
        capacity = _line(options, model, "predicted", Arrivals(options.clients))
        rate = options.share * capacity.requests / capacity.seconds
    record = Record(
        model=options.model if options.shape is None else f"{options.shape}, random weights",
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        settings=_settings(options, rate),
        notes=_notes(options, rate),
        lines=lines,
        **environment(model),
    )
    for name in options.arms:
        lines.append(_line(options, model, name, Arrivals(options.clients, rate)))
        print(lines[-1], flush=True)
        record = record.model_copy(update={"lines": lines})
        if options.out is not None:  # an interrupted run keeps its finished arms
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(record.to_json())
    print(table(record))
    return record


def _line(options: argparse.Namespace, model: Any, name: str, arrivals: Arrivals) -> Line:
    arm = arm_of(name)
    limits = ServerSettings(max_batch_size=options.batch_size, max_queue_size=max(options.clients, options.requests))
    if options.shape is not None:
        requests = shaped_requests(
            model, options.requests, arm,
            predicted=options.predicted, shortest=options.shortest, tokens_per_pass=options.tokens_per_pass,
            seed=options.seed,
        )  # fmt: skip
    else:
        mix = {item.partition("=")[0]: int(item.partition("=")[2]) for item in options.mix}
        requests = make_requests(
            model, options.requests, mix=mix, families=options.families, prompts=options.prompts, seed=options.seed
        )
        requests = requests_of(arm, requests)
    if options.timeout is not None:
        requests = [replace(request, job=replace(request.job, timeout=options.timeout)) for request in requests]
    if options.http:
        with served(options.model, name, limits, torch.get_num_threads()) as server:
            return asyncio.run(over_http(name, server, model, requests, arrivals, options.check))
    return asyncio.run(in_process(name, arm, model, requests, limits, arrivals, options.check))


def _settings(options: argparse.Namespace, rate: float | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "requests": options.requests, "clients": options.clients, "batch_size": options.batch_size,
        "http": options.http, "seed": options.seed,
    }  # fmt: skip
    if rate is not None:
        settings |= {"share": options.share, "requests_per_second": rate}
    if options.timeout is not None:
        settings["timeout"] = options.timeout
    if options.shape is not None:
        return settings | {
            "predicted": options.predicted,
            "shortest": options.shortest,
            "tokens_per_pass": options.tokens_per_pass,
            "canvas": CANVAS,
        }
    return settings | {"mix": " ".join(options.mix), "families": " ".join(options.families), "prompts": options.prompts}


def _notes(options: argparse.Namespace, rate: float | None) -> list[str]:
    arrivals = f"{options.clients} clients in a closed loop"
    if rate is not None:
        arrivals = f"{rate:.3g} requests per second (Poisson), {options.share:.0%} of the throughput of a closed loop"
    notes = [f"{options.requests} requests in batches of {options.batch_size}; {arrivals}."]
    if options.shape is not None:
        notes.append(
            "Random weights never write an end token: pairs of lengths are replayed, scaled to "
            f"{options.predicted} predicted slots on average. Tokens after the written length are not counted "
            f"({kept_pairs().source})."
        )
    else:
        notes.append(f"Validation prompts; recipes {' '.join(options.mix)}.")
    return [*notes, *options.note]


if __name__ == "__main__":
    main()
