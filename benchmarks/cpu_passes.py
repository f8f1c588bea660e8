"""Forward passes on one core of a CPU by dtype and quantization, with random weights at a shape of 0.8B parameters.

    python -m benchmarks.cpu_passes                            measure and write the record (10 minutes, 6 GB)
    python -m benchmarks.cpu_passes --quick --out out/cpu.json   a tiny shape
    python -m benchmarks.cpu_passes --table                    print the table of the record

Every arm runs in a process with one thread, which loads a checkpoint stored in bfloat16. A full pass computes all
logits. A block pass is a step of `generate` with a dual cache, selection of tokens included. Times are CPU seconds,
the minimum of full passes and the median of steps. `AVX2` limits oneDNN, which computes int8 and bfloat16, to the
instructions of a CPU without AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import lastword
from benchmarks.passes.shapes import TINY
from lastword.engines.base import environment
from lastword.io.files import write
from lastword.models.layers import BidirectionalTransformer, TransformerConfig

RECORD = Path(__file__).parent / "records" / "cpu-passes.json"
SHAPE = replace(
    TINY.shape, hidden_size=2048, num_layers=12, num_heads=16, num_kv_heads=16, intermediate_size=6144, vocab_size=32000
)
ARMS = {  # dtype, quantization and instructions
    "float32": ("float32", None, "ALL"),
    "bfloat16": ("bfloat16", None, "ALL"),
    "int8": ("float32", "int8", "ALL"),
    "int8, AVX2": ("float32", "int8", "AVX2"),
}
TOKENS, BLOCK, BLOCKS, TOKENS_PER_PASS = 512, 32, 3, 4


def write_checkpoint(shape: TransformerConfig, folder: Path) -> None:
    """Write a LLaDA checkpoint of this shape with random weights in bfloat16."""
    last = shape.vocab_size - 1
    config = {
        "model_type": "llada", "d_model": shape.hidden_size, "n_layers": shape.num_layers, "n_heads": shape.num_heads,
        "mlp_hidden_size": shape.intermediate_size, "vocab_size": shape.vocab_size, "rope_theta": shape.rope_theta,
        "max_sequence_length": shape.max_seq_len, "mask_token_id": last, "eos_token_id": last - 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        parameters = dict(BidirectionalTransformer(shape).named_parameters())
    generator, tensors = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    for ours, theirs in TINY.architecture.tensors.items():
        for layer in range(shape.num_layers if "{i}" in ours else 1):
            size = parameters[ours.format(i=layer)].shape
            weight = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * 0.02
            tensors[theirs.format(i=layer)] = weight.bfloat16()
    save_file(tensors, folder / "model.safetensors")


def measure(folder: Path, dtype: str, quantization: str | None, repeats: int) -> dict[str, Any]:
    """Measure one arm in this process, which has loaded no other model."""
    torch.set_num_threads(1)
    start = time.process_time()
    model = lastword.load(folder, device="cpu", dtype=dtype, quantization=quantization, calibration=None)
    loading, peak = time.process_time() - start, _peak_memory()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.ids.vocab_size - 2, (1, TOKENS), generator=generator)
    full = min(_seconds(lambda: model(tokens)) for _ in range(repeats + 1))
    clock: list[float] = []

    def stamp(step: int | None, canvas: Any) -> torch.Tensor:
        clock.append(time.process_time())
        tokens: torch.Tensor = canvas.tokens
        return tokens

    prompt = tokens[0, : TOKENS - (BLOCKS - 1) * BLOCK].tolist()  # with the other blocks, TOKENS cached keys
    lastword.generate(
        model, prompt, length=lastword.Fixed(BLOCKS * BLOCK), unmask=f"most-confident:{TOKENS_PER_PASS}", block=BLOCK,
        cache="dual", hooks=lastword.Hooks(tokens=stamp),
    )  # fmt: skip
    steps = [after - before for before, after in pairwise(clock)]
    within = [seconds for step, seconds in enumerate(steps) if step % (BLOCK // TOKENS_PER_PASS)]
    return {
        "full_pass_s": round(full, 4), "block_pass_s": round(statistics.median(within), 5),
        "load_s": round(loading, 2), "peak_memory_gb": None if peak is None else round(peak, 2),
        **environment(model),
    }  # fmt: skip


def run(shape: TransformerConfig, repeats: int) -> dict[str, Any]:
    """Measure every arm in a process of its own and return the record."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(shape, Path(folder))
        for name, (_, _, instructions) in ARMS.items():
            command = [sys.executable, "-m", "benchmarks.cpu_passes", "--arm", name, folder, str(repeats)]
            setting = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": instructions}
            done = subprocess.run(command, env=os.environ | setting, stdout=subprocess.PIPE, check=True)
            result = json.loads(done.stdout)
            head = {key: result.pop(key) for key in ("hardware", "versions")}
            lines.append({"arm": name, **result})
    return {**head, "parameters": shape.num_parameters, "tokens": TOKENS, "block": BLOCK, "lines": lines}


def table(record: dict[str, Any] | None = None) -> str:
    """Return a row per arm, with tokens per second and factors over the first arm."""
    record = record or json.loads(RECORD.read_text(encoding="utf-8"))
    first, *_ = record["lines"]
    rows = [
        "| | full pass, tokens/s | | block pass, tokens/s | | peak memory of loading |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for line in record["lines"]:
        full, block = line["full_pass_s"], line["block_pass_s"]
        rows.append(
            f"| {line['arm']} | {record['tokens'] / full:.0f} | {first['full_pass_s'] / full:.1f}x "
            f"| {record['block'] / block:.0f} | {first['block_pass_s'] / block:.1f}x | {line['peak_memory_gb']} GB |"
        )
    return "\n".join(rows)


def _seconds(call: Any) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _peak_memory() -> float | None:
    """Return the peak resident memory of this process in GB, mapped files included; None if it is not Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to test the program")
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--table", action="store_true", help="print the table of the record without measuring")
    parser.add_argument("--arm", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        name, folder, repeats = options.arm
        print(json.dumps(measure(Path(folder), *ARMS[name][:2], int(repeats))))
        return
    if not options.table:
        record = run(TINY.shape, 1) if options.quick else run(SHAPE, 3)
        write(options.out, json.dumps(record, indent=1) + "\n")
        print(table(record))
        return
    print(table())


if __name__ == "__main__":
    main()
