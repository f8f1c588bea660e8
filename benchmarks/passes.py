"""What one pass costs at the real shapes, random weights: `python -m benchmarks.passes` on a GPU.

Arithmetic does not depend on the values of the weights, so the 8B and 7B shapes can be timed without the
checkpoints. Each line is the median of several decoding passes through the library's own loop, beside the
bare model on the same columns: the difference is what our loop adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lastword
from lastword.canvas.ids import TokenIds
from lastword.models import Dream, LLaDA
from lastword.models.layers import Shape

RECORD = Path(__file__).parent / "records" / "passes.json"
LLADA_8B = Shape(
    width=4096,
    layers=32,
    heads=32,
    kv_heads=32,
    mlp_width=12288,
    vocabulary=126464,
    rope_theta=500000.0,
    norm_eps=1e-5,
    positions=4096,
    qkv_bias=False,
    tied_head=False,
    rotate_in_float32=True,
)
DREAM_7B = Shape(
    width=3584,
    layers=28,
    heads=28,
    kv_heads=4,
    mlp_width=18944,
    vocabulary=152064,
    rope_theta=1000000.0,
    norm_eps=1e-6,
    positions=131072,
    qkv_bias=True,
    tied_head=False,
    rotate_in_float32=False,
)
SMALL = {"width": 64, "layers": 2, "mlp_width": 128, "heads": 4, "kv_heads": 2, "vocabulary": 512}


def random_model(name: str, shape: Shape, device: str) -> Any:
    """A model of the shape in bf16, weights drawn on the device."""
    last = shape.vocabulary - 1
    ids = TokenIds(mask=last, end=last - 1, pad=last - 1, vocabulary=shape.vocabulary)
    with torch.device("meta"):
        model = {"llada": LLaDA, "dream": Dream}[name](shape, ids)
    model = model.to_empty(device=device).to(torch.bfloat16).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False).normal_(std=0.02)
    return model


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call, in milliseconds, after two warm-up calls."""
    times = []
    for _ in range(repeats + 2):
        _wait()
        began = time.perf_counter()
        call()
        _wait()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times[2:]), 2)


def measure(name: str, model: Any, prompt: int, slots: int, repeats: int) -> dict[str, Any]:
    """Bare pass, pass within the loop, and the probe, for one prompt and canvas."""
    device = model.device
    ids = torch.randint(0, 400, (prompt,)).tolist()
    tokens = torch.full((1, prompt + slots), model.ids.mask, device=device)
    read = torch.arange(prompt, prompt + slots, device=device)[None]
    bare = median_ms(lambda: model(tokens, read), repeats)

    recipe = lastword.Recipe(length=lastword.Fixed(slots))
    steps = lastword.decode(model, [ids], recipe, beyond_positions=True)
    in_loop = median_ms(lambda: next(steps), min(repeats, slots - 2))
    del steps

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    probe = median_ms(
        lambda: lastword.predict_length(model, ids, limit=slots, beyond_positions=True), repeats
    )
    peak = torch.cuda.max_memory_allocated() - held if device.type == "cuda" else 0
    return {
        "model": name,
        "prompt": prompt,
        "slots": slots,
        "bare_ms": bare,
        "in_loop_ms": in_loop,
        "probe_ms": probe,
        "probe_peak_mb": round(peak / 2**20),
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(record: dict[str, Any]) -> str:
    """Markdown, from the record."""
    lines = [
        f"{record['hardware']}, {record['dtype']}, batch 1, torch {record['torch']}, "
        f"median of {record['repeats']} passes after 2 warm-up passes, random weights.",
        "",
        "| shape | prompt | slots | bare pass, ms | pass in the loop, ms | probe, ms | probe's peak, MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for line in record["lines"]:
        cells = (
            line[name]
            for name in ("prompt", "slots", "bare_ms", "in_loop_ms", "probe_ms", "probe_peak_mb")
        )
        lines.append(f"| {line['model']} | {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write the record, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the record as Markdown")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the command")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.out.read_text())))
        return
    lines = []
    for name, kind, shape in (("LLaDA-8B", "llada", LLADA_8B), ("Dream-7B", "dream", DREAM_7B)):
        shape = Shape(**{**vars(shape), **(SMALL if given.small else {})})
        model = random_model(kind, shape, given.device)
        for prompt, slots in ((256, 64), (256, 256), (256, 1024), (900, 256), (900, 1024)):
            with torch.no_grad():
                lines.append(measure(name, model, prompt, slots, given.repeats))
            print(json.dumps(lines[-1]), flush=True)
        del model
    on_gpu = given.device.startswith("cuda")
    record = {
        "hardware": torch.cuda.get_device_name() if on_gpu else "CPU",
        "dtype": "bfloat16",
        "torch": torch.__version__,
        "lastword": lastword.__version__,
        "repeats": given.repeats,
        "lines": lines,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
