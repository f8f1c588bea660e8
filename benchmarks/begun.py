"""The error of the expected length before and after the first tokens of an answer are written.

    python -m benchmarks.begun run tiny-llada-instruct    reads canvases with tokens on them (a CPU, minutes)
    python -m benchmarks.begun table                      prints the table from records

The first tokens of the reference answer stand on the canvas and the rest is read in one pass, as `Reread`
does when a block is complete. Part of a length is the writer's choice, which no prompt tells; the first
tokens do.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.json_lines import SUFFIX, read_lines, write_lines
from benchmarks.readings import LIMIT, MODELS, asked
from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.policies.length.survival import Survival
from lastword.survival.interpretation import Auto, Hazard, Interpretation
from lastword.tasks import BENCHMARKS, load_frozen

RECORDS = Path(__file__).parent / "records" / "begun"
TOKENS = (0, 8, 16, 32)
Record = dict[str, Any]


def run(name: str, per_family: int, rows: int, out: Path) -> Path:
    """Read each prompt's canvas with none, then some of its answer's tokens on it."""
    model: Any = lastword.load(name, device="cpu")
    tokenizer = model.tokenizer
    examples = [e for family in BENCHMARKS for e in load_frozen("test", family)[:per_family]]
    prompts = asked(tokenizer, [e.prompt for e in examples])
    answers = [tokenizer.encode(e.answer) for e in examples]
    records: list[Record] = [
        {"family": e.family, "length": len(answer) + 1, "product": {}, "auto": {}}
        for e, answer in zip(examples, answers)
    ]
    order = sorted(range(len(examples)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        picked: dict[int, Interpretation] = {}
        for tokens in TOKENS:
            longer = [index for index in batch if len(answers[index]) >= tokens]
            if not longer:
                continue
            signal = _signal(model, [prompts[i] for i in longer], [answers[i][:tokens] for i in longer])
            # Auto chooses once, by the probe: the rest of a canvas looks like another kind of training.
            if tokens == 0:
                picked = {i: c.interpretation for i, c in zip(longer, Auto().choose(signal))}
            for row, index in enumerate(longer):
                own = signal.row(row)
                for title, reading in (("product", Hazard()), ("auto", picked[index])):
                    records[index][title][str(tokens)] = round(reading(own).mean.item(), 2)
    head = {"model": name, "limit": LIMIT, "per_family": per_family, "tokens": TOKENS}
    head |= {"torch": torch.__version__, "lastword": lastword.__version__}
    return write_lines(out / f"{name}{SUFFIX}", head, records)


def _signal(model: Any, prompts: Sequence[list[int]], begun: Sequence[list[int]]) -> Any:
    """Return the end signal after the written tokens `begun`."""
    canvas = Canvas.blank(prompts, torch.full((len(prompts),), LIMIT), model.ids)
    tokens = torch.full_like(canvas.tokens, model.ids.mask)
    for row, own in enumerate(begun):
        tokens[row, canvas.start : canvas.start + len(own)] = torch.tensor(own, dtype=torch.long)
    canvas = canvas.write(tokens != model.ids.mask, tokens)
    forward = Forward(model, Sampling(), RowGenerators([0] * len(prompts)))
    prediction, _ = forward(canvas, PassInputs(Columns.from_mask(canvas.masked)), BatchCost.zeros(len(prompts)))
    return Survival(LIMIT).signal(prediction, canvas)


def read(folder: Path = RECORDS) -> dict[str, list[Record]]:
    """Each model's records."""
    paths = {model: folder / f"{model}{SUFFIX}" for model in MODELS}
    return {model: read_lines(path)[1] for model, path in paths.items() if path.is_file()}


def error(records: Sequence[Record], reading: str, tokens: int) -> float:
    """Return the mean absolute error of the expected length, in slots, after `tokens` written tokens."""
    return statistics.mean(abs(r[reading][str(tokens)] - r["length"]) for r in records)


def longer_than(records: Sequence[Record], tokens: int) -> list[Record]:
    """Answers that were not over by then."""
    return [r for r in records if str(tokens) in r["auto"]]


def table(models: dict[str, list[Record]]) -> str:
    """Markdown: error after so many tokens, and as a share of the product's before the first."""
    lines = [
        "| model | tokens written | prompts | product | Auto | Auto, of the product's before the first |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for model, records in models.items():
        for tokens in TOKENS:
            mine = longer_than(records, tokens)
            before = error(mine, "product", 0)
            product, auto = (error(mine, reading, tokens) for reading in ("product", "auto"))
            lines.append(f"| {model} | {tokens} | {len(mine)} | {product:.1f} | {auto:.1f} | {auto / before:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="read and write records")
    runs.add_argument("model", nargs="+")
    runs.add_argument("--per-family", type=int, default=200)
    runs.add_argument("--rows", type=int, default=8)
    runs.add_argument("--out", type=Path, default=RECORDS)
    commands.add_parser("table", help="print the table from records")
    given = parser.parse_args()
    if given.command == "run":
        for model in given.model:
            print(run(model, given.per_family, given.rows, given.out), flush=True)
    else:
        print(table(read()))


if __name__ == "__main__":
    main()
