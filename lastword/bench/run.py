"""A run: ceilings, then line by line, then the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

import lastword
from lastword.api import MAX_ROWS
from lastword.bench.ceilings import ceilings
from lastword.bench.lines import LINES, MIXED_PACE, Bench, Settings
from lastword.bench.meter import Meter
from lastword.bench.recipes import recipe_lines
from lastword.bench.record import Ceilings, Line, Record
from lastword.bench.replay import kept_pairs
from lastword.bench.shapes import architecture_of, random_model
from lastword.engines.surroundings import surroundings

Show = Callable[[Line], None]
HOW = (
    "In the loop, a pass is the difference of two runs of lastword.generate, divided by the passes one has "
    "more: what a run does once, or where a block opens, is not in it.",
    "TFLOP/s count the least arithmetic, GB/s the least traffic: every weight once a pass, keys and values.",
    "Busy is the device's time by the profiler over the wall time without it; a graph is one launch. Traced "
    "are a full pass in the loop and one under the dual cache: a trace takes seconds.",
)


@torch.no_grad()
def bench_shape(
    shape: str,
    settings: Settings,
    lines: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    weights: str,
    repeats: int,
    show: Show,
) -> Record:
    """Measure lines of a model of this shape with random weights."""
    began = time.perf_counter()
    architecture = architecture_of(shape)
    meter = Meter(device, repeats)
    model = random_model(architecture, device, dtype, weights)
    best = ceilings(meter, dtype)
    bench = Bench(model, meter, settings, best)
    found: list[Line] = []
    for name in lines:
        for line in LINES[name](bench):
            found.append(line)
            show(line)
    notes = [*HOW]
    if "mixed" in lines:
        notes.append(
            f"mixed: {settings.rows} slots, prompts of {settings.prompts[0]} to {settings.prompts[1]}, "
            f"{MIXED_PACE:g} tokens a pass. Random weights end nothing, so lengths are replayed from pairs, "
            f"scaled to {settings.predicted} predicted slots on average; a row ends with the block in which "
            "it wrote its written length; tokens count up to that, or to the horizon where that is less. A "
            "useful column belongs to an unfinished row and is no padding."
        )
        notes.append(f"pairs: {kept_pairs().source}")
    if "plain" in lines:
        notes.append(
            "plain: our own writing of the authors' loop in plain modules; an answer's seconds extrapolated."
        )
    plain = asdict(settings) | {"caches": ",".join(settings.caches)}
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}
    known = {f"shape_{name}": value for name, value in asdict(architecture.shape).items()}
    return _record(
        model, meter, found, notes, best, began,
        shape=architecture.name, weights=weights, settings=plain | known,
    )  # fmt: skip


def bench_recipes(
    models: Sequence[str],
    arms: Sequence[str],
    rows: int,
    slots: int | None,
    *,
    device: torch.device,
    dtype: str,
    repeats: int,
    show: Show,
    solo: int = 0,
) -> Record:
    """Measure recipes on embedded models."""
    began = time.perf_counter()
    # Lengths that come up rarely are captured in the second run.
    meter = Meter(device, repeats, warm_up=2, seconds=30 if device.type == "cuda" else 2)
    found: list[Line] = []
    model: Any = None
    for name in models:
        model = lastword.load(name, device=device, dtype=dtype)
        for line in recipe_lines(name, model, meter, arms, rows, slots, solo):
            found.append(line)
            show(line)
    settings: dict[str, Any] = {"rows": rows, "slots": slots or MAX_ROWS}
    notes = [
        "Validation prompts, families in turn; every recipe on the model's own canvas; seconds from the "
        "first probe to the last token, of a run of the same rows after one that compiled kernels and "
        "captured graphs; that one's seconds stand beside."
    ]
    return _record(
        model,
        meter,
        found,
        notes,
        None,
        began,
        shape="embedded",
        weights="plain",
        settings=settings,
    )


def _record(
    model: Any,
    meter: Meter,
    lines: list[Line],
    notes: list[str],
    best: Ceilings | None,
    began: float,
    **told: Any,
) -> Record:
    return Record(
        **surroundings(model),
        dtype=str(model.network.norm.weight.dtype).removeprefix("torch."),
        warm_up=meter.warm_up,
        repeats=meter.repeats,
        notes=notes,
        seconds=time.perf_counter() - began,
        ceilings=best,
        lines=lines,
        **told,
    )
