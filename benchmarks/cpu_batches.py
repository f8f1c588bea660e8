"""Compare batches with the same prompts one by one, on one thread of a CPU: `python -m benchmarks.cpu_batches`.

    python -m benchmarks.cpu_batches --prompts 16 64
    python -m benchmarks.cpu_batches --prompts 2 --out FILE     to test the script

Prompts are validation prompts of all families in turn. Seconds are CPU seconds of this process, which work of others
on the machine changes little. The answers of a batch are compared with those of the same prompts alone.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lastword
from lastword.engines.base import compute_dtype, environment
from lastword.io.files import write
from lastword.policies.cache import DualCache
from lastword.recipe.recipe import Recipe
from lastword.tasks import BENCHMARKS, load_frozen

RECORD = Path(__file__).parent / "records" / "cpu-batches.json"
MODEL = "tiny-llada-base"
RECIPES = {
    "careful": Recipe.named("careful"),
    "fast": Recipe.named("fast"),
    "fast, dual cache": replace(Recipe.named("fast"), cache=DualCache()),
}


def prompts_of(count: int) -> list[str]:
    """Return validation prompts of all families in turn."""
    rows = zip(*(load_frozen("validation", family) for family in BENCHMARKS))
    texts = [example.prompt for row in rows for example in row]
    return (texts * -(-count // len(texts)))[:count]


def measure(model: lastword.MaskPredictor, name: str, prompts: list[str]) -> dict[str, Any]:
    """Return the CPU seconds of a batch and of the same prompts one by one."""
    recipe = RECIPES[name]
    lastword.generate(model, prompts[:2], recipe=recipe)  # warm-up
    start = time.process_time()
    batch = lastword.generate(model, prompts, recipe=recipe)
    middle = time.process_time()
    alone = [lastword.generate(model, prompt, recipe=recipe) for prompt in prompts]
    end = time.process_time()
    return {
        "dtype": compute_dtype(model), "recipe": name, "prompts": len(prompts),
        "batch": round(middle - start, 2), "alone": round(end - middle, 2),
        "equal": sum(one.text == other.text for one, other in zip(batch, alone)),
    }  # fmt: skip


def table(path: Path = RECORD) -> str:
    """Return a Markdown table of the record."""
    rows = ["| dtype | recipe | prompts | batch, s | one by one, s | speed-up |"]
    rows.append("|---|---|---:|---:|---:|---:|")
    for line in json.loads(path.read_text())["lines"]:
        cells = [
            "int8" if "int8" in line["dtype"] else line["dtype"],
            line["recipe"],
            f"{line['prompts']}",
            f"{line['batch']:.1f}",
            f"{line['alone']:.1f}",
        ]
        rows.append(f"| {' | '.join(cells)} | {line['alone'] / line['batch']:.2f}x |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure all recipes and sizes and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_batches")
    parser.add_argument("--prompts", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--recipes", nargs="+", choices=[*RECIPES], default=[*RECIPES])
    parser.add_argument("--quantizations", nargs="+", choices=["none", "int8"], default=["none", "int8"])
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = []
    for quantization in options.quantizations:
        quantized = None if quantization == "none" else quantization
        model = lastword.load(MODEL, device="cpu", dtype=torch.float32, quantization=quantized)
        for count in options.prompts:
            for name in options.recipes:
                lines.append(measure(model, name, prompts_of(count)))
                print(lines[-1], flush=True)
    write(options.out, json.dumps({"model": MODEL, **environment(model), "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
