"""The error of the expected length before and after the first tokens of an answer are written.

    python -m benchmarks.partial_answers run tiny-llada-instruct    probe partial answers (a CPU, minutes)
    python -m benchmarks.partial_answers table                      print the table of the records

The first tokens of the reference answer are written to the canvas, and one forward pass over the rest gives the
end signal, as in `Reread` after a complete block.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.interpretations import LIMIT, MODELS, tokenize
from benchmarks.json_lines import SUFFIX, read_lines, write_lines
from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.policies.length.survival import Survival
from lastword.survival.interpretation import Auto, Hazard, Interpretation
from lastword.tasks import BENCHMARKS, load_frozen

RECORDS = Path(__file__).parent / "records" / "partial-answers"
TOKENS = (0, 8, 16, 32)
Record = dict[str, Any]


def run(name: str, per_family: int, batch_size: int, out: Path) -> Path:
    """Probe each prompt with an empty canvas and with the first tokens of its answer; write the expected lengths."""
    model: Any = lastword.load(name, device="cpu")
    tokenizer = model.tokenizer
    examples = [example for family in BENCHMARKS for example in load_frozen("test", family)[:per_family]]
    prompts = tokenize(tokenizer, [example.prompt for example in examples])
    answers = [tokenizer.encode(example.answer) for example in examples]
    records: list[Record] = [
        {"family": example.family, "length": len(answer) + 1, "product": {}, "auto": {}}
        for example, answer in zip(examples, answers)
    ]
    order = sorted(range(len(examples)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        chosen: dict[int, Interpretation] = {}
        for tokens in TOKENS:
            longer = [index for index in batch if len(answers[index]) >= tokens]
            if not longer:
                continue
            signal = _signal(model, [prompts[i] for i in longer], [answers[i][:tokens] for i in longer])
            # Auto chooses once, from the empty canvas: the signal of a partial answer looks like other training data.
            if tokens == 0:
                chosen = {i: choice.interpretation for i, choice in zip(longer, Auto().choose(signal))}
            for row, index in enumerate(longer):
                for title, interpretation in (("product", Hazard()), ("auto", chosen[index])):
                    mean = interpretation(signal.row(row)).mean.item()
                    records[index][title][str(tokens)] = round(mean, 2)
    head = {"model": name, "limit": LIMIT, "per_family": per_family, "tokens": TOKENS}
    head |= {"torch": torch.__version__, "lastword": lastword.__version__}
    return write_lines(out / f"{name}{SUFFIX}", head, records)


def _signal(model: Any, prompts: Sequence[list[int]], written: Sequence[list[int]]) -> Any:
    """Return the end signal after the tokens `written` of each answer."""
    canvas = Canvas.blank(prompts, torch.full((len(prompts),), LIMIT), model.ids)
    tokens = torch.full_like(canvas.tokens, model.ids.mask)
    for row, ids in enumerate(written):
        tokens[row, canvas.start : canvas.start + len(ids)] = torch.tensor(ids, dtype=torch.long)
    canvas = canvas.write(tokens != model.ids.mask, tokens)
    forward = Forward(model, Sampling(), RowGenerators([0] * len(prompts)))
    prediction, _ = forward(canvas, PassInputs(Columns.from_mask(canvas.masked)), BatchCost.zeros(len(prompts)))
    return Survival(LIMIT).signal(prediction, canvas)


def read(folder: Path = RECORDS) -> dict[str, list[Record]]:
    """Return the records of each model."""
    paths = {model: folder / f"{model}{SUFFIX}" for model in MODELS}
    return {model: read_lines(path)[1] for model, path in paths.items() if path.is_file()}


def error(records: Sequence[Record], name: str, tokens: int) -> float:
    """Return the mean absolute error of the expected length, in slots, after `tokens` written tokens."""
    return statistics.mean(abs(record[name][str(tokens)] - record["length"]) for record in records)


def longer_than(records: Sequence[Record], tokens: int) -> list[Record]:
    """Return the records of answers that have at least `tokens` tokens."""
    return [record for record in records if str(tokens) in record["auto"]]


def table(models: dict[str, list[Record]]) -> str:
    """Return Markdown with the error of Auto after some tokens, and of the product in brackets."""
    lines = [
        f"| model | {' | '.join(f'{tokens} tokens written' for tokens in TOKENS)} |",
        f"|---|{'---:|' * len(TOKENS)}",
    ]
    for model, records in models.items():
        cells = []
        for tokens in TOKENS:
            longer = longer_than(records, tokens)
            cells.append(f"{error(longer, 'auto', tokens):.1f} ({error(longer, 'product', tokens):.1f})")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="probe and write records")
    runs.add_argument("model", nargs="+")
    runs.add_argument("--per-family", type=int, default=200)
    runs.add_argument("--batch-size", type=int, default=8, help="prompts probed at the same time")
    runs.add_argument("--out", type=Path, default=RECORDS)
    commands.add_parser("table", help="print the table of the records")
    options = parser.parse_args()
    if options.command == "run":
        for model in options.model:
            print(run(model, options.per_family, options.batch_size, options.out), flush=True)
    else:
        print(table(read()))


if __name__ == "__main__":
    main()
