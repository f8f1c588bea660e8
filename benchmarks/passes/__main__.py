"""Measure forward passes, answers and batches of any model shape with random weights, and keep a record.

    python -m benchmarks.passes --shape tiny --lines passes,probe --prompt 90 --canvas 64 --repeats 1
    python -m benchmarks.passes --shape llada-8b --tokens 16384 --out llada-8b.json
    python -m benchmarks.passes --table llada-8b.json

Arithmetic does not depend on the values of weights, so real shapes are timed without the checkpoints: full
forward passes, forward passes inside a block with each cache, the probe, whole answers, mixed batches, and a
plain implementation of the authors' loop, with the peak rates of the device in the same run. `lastword bench`
times recipes on models that have weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.passes.lines import CACHES, LINES, MIXED_TOKENS_PER_PASS, Bench, Settings
from benchmarks.passes.meter import Meter, ceilings
from benchmarks.passes.record import PassLine, PassRecord, read
from benchmarks.passes.replay import kept_pairs
from benchmarks.passes.shapes import random_model, shape_of
from benchmarks.passes.table import table
from lastword.engines.base import environment
from lastword.errors import LastwordError, SettingError
from lastword.io.files import write
from lastword.models.load import as_device, as_dtype
from lastword.validation import check_int

NOTES = (
    "A forward pass of the decoding loop is the difference of two runs of lastword.generate, divided by the "
    "difference in their numbers of passes. Work done once per run or at the start of a block is not included.",
    "TFLOP/s are computed from the minimum arithmetic, GB/s from the minimum memory traffic: every weight once per "
    "forward pass, and keys and values.",
    "GPU busy is the time of kernels in the profiler divided by the wall time without the profiler. A CUDA graph is "
    "one launch. Only a full pass of the decoding loop and one with the dual cache are traced.",
)


@torch.no_grad()
def measure(
    shape: str,
    settings: Settings,
    lines: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantization: str | None = None,
    repeats: int = 3,
    on_line: Callable[[PassLine], object] = lambda line: None,
) -> PassRecord:
    """Measure lines (names of `LINES`) on a model of this shape with random weights."""
    start = time.perf_counter()
    architecture = shape_of(shape)
    meter = Meter(device, repeats)
    model = random_model(architecture, device, dtype, quantization)
    best = ceilings(meter, dtype)
    bench = Bench(model, meter, settings, best)
    measured: list[PassLine] = []
    for name in lines:
        for line in LINES[name](bench):
            measured.append(line)
            on_line(line)
    notes = [*NOTES]
    if "mixed" in lines:
        notes.append(
            f"mixed: batches of {settings.batch_size}, prompts of {settings.prompts[0]} to {settings.prompts[1]} "
            f"tokens, {MIXED_TOKENS_PER_PASS:g} tokens per forward pass. Random weights never write an end token, so "
            "pairs of predicted and written lengths of an embedded model are replayed, scaled to "
            f"{settings.predicted} predicted slots on average. A row ends with the block in which it reaches its "
            "written length. Tokens after that, or after the horizon, are not counted. A useful token belongs to an "
            "unfinished row and is not padding."
        )
        notes.append(f"pairs: {kept_pairs().source}")
    if "plain" in lines:
        notes.append(
            "plain: our implementation of the authors' loop in plain modules; seconds per answer are extrapolated."
        )
    plain = asdict(settings) | {"caches": ",".join(settings.caches)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    return PassRecord(
        **environment(model),
        shape=architecture.name,
        dtype=str(model.network.norm.weight.dtype).removeprefix("torch."),
        weights=quantization or "plain",
        warm_up=meter.warm_up,
        repeats=meter.repeats,
        settings=plain | {f"shape_{name}": value for name, value in asdict(architecture.shape).items()},
        notes=notes,
        seconds=time.perf_counter() - start,
        ceilings=best,
        lines=measured,
    )


def names_in(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Return the names in a list separated by commas; unknown names are rejected."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise SettingError(f"--{option} {text!r}: {name!r} is unknown; give some of {', '.join(known)}")
    return names


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--shape", help="llada-8b, dream-7b, tiny, or a checkpoint's folder or config.json")
    add("--lines", help=f"some of {', '.join(LINES)}; default: all; widths only with --tokens")
    add("--prompt", type=int, default=default.prompt, help="tokens of the prompt")
    add("--canvas", default="1024,256", help="slots of full forward passes; the largest is that of the probe")
    add("--horizon", type=int, default=default.horizon, help="slots of a whole answer")
    add("--block", type=int, default=default.block)
    add("--tokens-per-pass", type=float, default=default.tokens_per_pass, help="in a whole answer")
    add("--batch-size", type=int, default=default.batch_size, help="of mixed batches; the queue has 4 times as many")
    add("--tokens", type=int, help="width of the widest full pass; up to four widths from 1024 on, each doubled")
    add("--caches", default=",".join(CACHES), help=f"some of {', '.join(CACHES)}")
    add("--quantization", help="fp8 or int8; default: none")
    add("--repeats", type=int, default=3, help="runs of a median; fewer if they take seconds")
    add("--out", type=Path, default=Path("out/passes.json"))
    add("--table", type=Path, help="print this record as Markdown without measuring")
    add("--device", default="auto")
    add("--dtype", default="auto")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the record and print its tables."""
    options = _parser().parse_args(arguments)
    if options.table is not None:
        print(table(read(options.table)))
        return
    canvas = tuple(int(word) for word in options.canvas.split(","))
    two_or_more = [("prompt", options.prompt), ("horizon", options.horizon), ("block", options.block)]
    two_or_more += [("canvas", slots) for slots in canvas]
    for name, value in (*two_or_more, ("tokens", options.tokens or 2)):
        check_int("benchmarks.passes", name, value, minimum=2)
    lines = names_in("lines", options.lines, LINES) if options.lines else [*LINES]
    if options.lines is None and options.tokens is None:
        lines.remove("widths")
    device = as_device(options.device)
    on_gpu = device.type == "cuda"
    settings = Settings(
        options.prompt, canvas, options.horizon, options.block, options.tokens_per_pass, options.batch_size,
        queue=4 * options.batch_size, tokens=options.tokens or Settings().tokens,
        caches=tuple(names_in("caches", options.caches, CACHES)),
    )  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def show(line: PassLine) -> None:
        per_pass = f"{line.ms:,.2f} ms per forward pass" if line.ms is not None else ""
        print(f"{line.line}: {line.case}: {per_pass}", file=sys.stderr, flush=True)

    record = measure(
        options.shape or ("llada-8b" if on_gpu else "tiny"), settings, lines, device=device,
        dtype=as_dtype(options.dtype) or (torch.bfloat16 if on_gpu else torch.float32),
        quantization=options.quantization, repeats=options.repeats, on_line=show,
    )  # fmt: skip
    write(options.out, record.to_json())
    print(table(read(options.out)))  # with the rounded numbers of the file
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    try:
        main()
    except LastwordError as error:
        sys.exit(str(error))
