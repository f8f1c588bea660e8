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
    told = arguments(sys.argv[1:] if given is None else given)
    model: Any = (
        lastword.load(told.model, device=told.device, dtype=told.dtype)
        if told.shape is None
        else shaped_model(told.shape, told.device, told.dtype)
    )
    rate, lines = None, list[Line]()
    if told.share is not None:
        capacity = _line(told, model, "predicted", How(told.clients))
        rate = told.share * capacity.requests / capacity.seconds
    record = Record(
        model=told.model if told.shape is None else f"{told.shape}, random weights",
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        settings=_settings(told, rate),
        notes=_notes(told, rate),
        lines=lines,
        **environment(model),
    )
    for name in told.arms:
        lines.append(_line(told, model, name, How(told.clients, rate)))
        print(lines[-1], flush=True)
        record = record.model_copy(update={"lines": lines})
        if told.out is not None:  # a run that is stopped keeps the arms it has
            told.out.parent.mkdir(parents=True, exist_ok=True)
            told.out.write_text(record.to_json())
    print(table(record))
    return record


def _line(told: argparse.Namespace, model: Any, name: str, how: How) -> Line:
    arm = arm_of(name)
    limits = ServerSettings(max_batch_size=told.slots, max_queue_size=max(told.clients, told.requests))
    if told.shape is not None:
        asked = shaped_requests(
            model, told.requests, arm,
            predicted=told.predicted, shortest=told.shortest, pace=told.pace, seed=told.seed,
        )  # fmt: skip
    else:
        mix = {own.partition("=")[0]: int(own.partition("=")[2]) for own in told.mix}
        every = requests(model, told.requests, mix=mix, families=told.families, prompts=told.prompts, seed=told.seed)
        asked = asked_by(arm, every)
    if told.http:
        with served(told.model, name, limits, torch.get_num_threads()) as server:
            return asyncio.run(over_http(name, server, model, asked, how, told.check))
    return asyncio.run(in_process(name, arm, model, asked, limits, how, told.check))


def _settings(told: argparse.Namespace, rate: float | None) -> dict[str, Any]:
    own: dict[str, Any] = {
        "requests": told.requests, "clients": told.clients, "slots": told.slots, "http": told.http,
        "seed": told.seed,
    }  # fmt: skip
    if rate is not None:
        own |= {"share": told.share, "requests_a_second": rate}
    if told.shape is not None:
        return own | {"predicted": told.predicted, "shortest": told.shortest, "pace": told.pace, "canvas": CANVAS}
    return own | {"mix": " ".join(told.mix), "families": " ".join(told.families), "prompts": told.prompts}


def _notes(told: argparse.Namespace, rate: float | None) -> list[str]:
    come = f"{told.clients} clients, each of which asks again once it is answered"
    if rate is not None:
        come = f"{rate:.3g} requests a second (Poisson), {told.share:.0%} of what a closed loop gives"
    notes = [f"{told.requests} requests through {told.slots} slots; {come}."]
    if told.shape is not None:
        notes.append(
            f"Random weights end nothing: lengths are replayed as pairs, scaled to {told.predicted} "
            f"predicted slots on average, and tokens count up to the written length ({kept_pairs().source})."
        )
    else:
        notes.append(f"Validation prompts; recipes {' '.join(told.mix)}, as settled for each arm.")
    return [*notes, *told.note]


if __name__ == "__main__":
    main()
