"""Measure the server under load: `python -m benchmarks.serving --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.passes.replay import kept_pairs
from benchmarks.serving.figures import Line, Record, table
from benchmarks.serving.load import ARMS, MIX, arm_of, asked_by, requests
from benchmarks.serving.run import How, in_process, over_http
from benchmarks.serving.served import served
from benchmarks.serving.shaped import CANVAS, shaped_model, shaped_requests
from lastword.engines.base import environment
from lastword.serve.settings import ServerSettings
from lastword.tasks import BENCHMARKS


def arguments(given: list[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description="The server under load: requests of natural lengths, arm by arm.",
    )
    add = parser.add_argument
    add("--model", default="tiny-llada-base", help="an embedded model")
    add("--shape", help="random weights of this shape instead, lengths replayed (llada-8b, tiny, a folder)")
    add("--arms", nargs="+", default=[*ARMS], help=f"{', '.join(ARMS)}, overtaking=N")
    add("--requests", type=int, default=1000)
    add("--clients", type=int, default=64)
    add("--slots", type=int, default=ServerSettings().max_batch_size)
    add("--mix", nargs="+", default=[f"{name}={n}" for name, n in MIX.items()], help="recipes and weights")
    add("--families", nargs="+", default=[*BENCHMARKS], choices=BENCHMARKS)
    add("--prompts", type=int, default=60, help="of each family; then the same again")
    add("--share", type=float, help="Poisson arrivals at this share of what a closed loop of `predicted` gives")
    add("--http", action="store_true", help="over HTTP, the server in a process of its own")
    add("--check", type=int, default=20, help="answers of each arm that are decoded alone as well")
    add("--predicted", type=int, default=256, help="with --shape: slots predicted on average")
    add("--shortest", type=int, default=200, help="with --shape: tokens of the shortest prompt")
    add("--pace", type=float, default=3.25, help="with --shape: tokens a pass")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--seed", type=int, default=0)
    add("--note", action="append", default=[], help="a sentence for the record: what else ran, say")
    add("--out", type=Path, help="where the record goes")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> Record:
    """Measure every arm, show the table, keep the record."""
    options = arguments(sys.argv[1:] if given is None else given)
    model: Any = (
        lastword.load(options.model, device=options.device, dtype=options.dtype)
        if options.shape is None
        else shaped_model(options.shape, options.device, options.dtype)
    )
    rate, lines = None, list[Line]()
    if options.share is not None:
        capacity = _line(options, model, "predicted", How(options.clients))
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
        lines.append(_line(options, model, name, How(options.clients, rate)))
        print(lines[-1], flush=True)
        record = record.model_copy(update={"lines": lines})
        if options.out is not None:  # a run that is stopped keeps the arms it has
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(record.to_json())
    print(table(record))
    return record


def _line(options: argparse.Namespace, model: Any, name: str, how: How) -> Line:
    arm = arm_of(name)
    limits = ServerSettings(max_batch_size=options.slots, max_queue_size=max(options.clients, options.requests))
    if options.shape is not None:
        asked = shaped_requests(
            model, options.requests, arm,
            predicted=options.predicted, shortest=options.shortest, pace=options.pace, seed=options.seed,
        )  # fmt: skip
    else:
        mix = {own.partition("=")[0]: int(own.partition("=")[2]) for own in options.mix}
        every = requests(
            model, options.requests, mix=mix, families=options.families, prompts=options.prompts, seed=options.seed
        )
        asked = asked_by(arm, every)
    if options.http:
        with served(options.model, name, limits, torch.get_num_threads()) as server:
            return asyncio.run(over_http(name, server, model, asked, how, options.check))
    return asyncio.run(in_process(name, arm, model, asked, limits, how, options.check))


def _settings(options: argparse.Namespace, rate: float | None) -> dict[str, Any]:
    own: dict[str, Any] = {
        "requests": options.requests, "clients": options.clients, "slots": options.slots, "http": options.http,
        "seed": options.seed,
    }  # fmt: skip
    if rate is not None:
        own |= {"share": options.share, "requests_a_second": rate}
    if options.shape is not None:
        return own | {
            "predicted": options.predicted,
            "shortest": options.shortest,
            "pace": options.pace,
            "canvas": CANVAS,
        }
    return own | {"mix": " ".join(options.mix), "families": " ".join(options.families), "prompts": options.prompts}


def _notes(options: argparse.Namespace, rate: float | None) -> list[str]:
    come = f"{options.clients} clients, each of which asks again once it is answered"
    if rate is not None:
        come = f"{rate:.3g} requests a second (Poisson), {options.share:.0%} of what a closed loop gives"
    notes = [f"{options.requests} requests through {options.slots} slots; {come}."]
    if options.shape is not None:
        notes.append(
            f"Random weights end nothing: lengths are replayed as pairs, scaled to {options.predicted} "
            f"predicted slots on average, and tokens count up to the written length ({kept_pairs().source})."
        )
    else:
        notes.append(f"Validation prompts; recipes {' '.join(options.mix)}, as settled for each arm.")
    return [*notes, *options.note]


if __name__ == "__main__":
    main()
