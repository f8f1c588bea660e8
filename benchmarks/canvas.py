"""Fixed canvas against predicted canvas on the embedded models, answer by answer.

    python -m benchmarks.canvas run tiny-llada-base --per-family 500     writes records (a GPU for all)
    python -m benchmarks.canvas table                                    prints the table from records

Three canvases per model: fixed at 256; the paper's predicted length; fixed at the mean of the predicted
lengths, which spends as much and knows nothing of the prompt. One token a pass, the surest first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.ask import ask
from lastword.eval import paired_p
from lastword.length import LengthPolicy
from lastword.tasks import BENCHMARKS, FAMILIES, Example, load_frozen

RECORDS = Path(__file__).parent / "records" / "canvas"
CANVAS = 256
Record = dict[str, Any]


def measure(
    model: Any, examples: Sequence[Example], length: LengthPolicy, rows: int
) -> Iterator[Record]:
    """One record per example, unscored; prompts of like length are decoded together."""
    for reply in ask(model, examples, length, rows):
        answer = reply.answer
        yield {
            "place": reply.place,
            "prompt_tokens": len(answer.prompt),
            "horizon": answer.horizon,
            "length": len(answer.tokens),
            "finish": answer.finish.name.lower(),
            "passes": answer.cost["passes"] + answer.probe_cost["passes"],
            "columns": answer.cost["columns"] + answer.probe_cost["columns"],
            "seconds": round(reply.seconds, 6),
            "text": answer.text,
        }


def run(name: str, per_family: int, rows: int, device: str, out: Path) -> Path:
    """Measure the three canvases on the first test prompts of every family; write records."""
    model: Any = lastword.load(name, device=device)
    examples = [e for family in BENCHMARKS for e in load_frozen("test", family)[:per_family]]
    # One batch of warm-up: kernels are chosen on first use.
    list(measure(model, examples[: min(rows, 32)], lastword.Fixed(16), rows))
    records: list[Record] = []
    mean = 0
    for canvas in ("fixed", "survival", "fixed mean"):
        lengths: dict[str, LengthPolicy] = {
            "fixed": lastword.Fixed(CANVAS),
            "survival": lastword.Survival(CANVAS),
            "fixed mean": lastword.Fixed(max(1, mean)),
        }
        fresh = sorted(measure(model, examples, lengths[canvas], rows), key=lambda r: r["place"])
        if canvas == "survival":
            mean = math.ceil(sum(r["horizon"] for r in fresh) / len(fresh))
        _score(fresh, examples)
        records += [{"canvas": canvas, **record} for record in fresh]
        share = sum(r["right"] for r in fresh) / len(fresh)
        print(json.dumps({"model": Path(name).name, "canvas": canvas, "right": share}), flush=True)
    head = {
        "model": Path(name).name,
        "per_family": per_family,
        "rows_at_once": rows,
        "hardware": torch.cuda.get_device_name()
        if model.device.type == "cuda"
        else platform.machine(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "lastword": lastword.__version__,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{Path(name).name}.jsonl.gz"
    lines = [json.dumps(line) for line in (head, *records)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return path


def _score(records: list[Record], examples: Sequence[Example]) -> None:
    for family in BENCHMARKS:
        mine = [r for r in records if examples[r["place"]].family == family]
        right = FAMILIES[family].score_all(
            [examples[r["place"]] for r in mine], [r.pop("text") for r in mine]
        )
        for record, verdict in zip(mine, right):
            record |= {"family": family, "right": bool(verdict)}


def read(path: Path) -> tuple[Record, list[Record]]:
    """The head of a records file, and its records."""
    head, *records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return head, records


def table(paths: Sequence[Path]) -> str:
    """Markdown: one line per model and canvas, everything against the fixed canvas of 256."""
    lines = [
        "| model | canvas | mean slots | accuracy | difference, paired p | passes | columns | seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for path in paths:
        head, records = read(path)
        by_canvas: dict[str, list[Record]] = {}
        for record in records:
            by_canvas.setdefault(record["canvas"], []).append(record)
        base = by_canvas["fixed"]
        for canvas, mine in by_canvas.items():
            n = len(mine)
            right, base_right = [r["right"] for r in mine], [r["right"] for r in base]
            difference = (sum(right) - sum(base_right)) / n
            compared = (
                "" if mine is base else f"{difference:+.3f}, p = {paired_p(base_right, right):.2g}"
            )
            share = {
                name: sum(r[name] for r in mine) / sum(r[name] for r in base)
                for name in ("passes", "columns", "seconds")
            }
            lines.append(
                f"| {head['model']} | {canvas} | {sum(r['horizon'] for r in mine) / n:.0f} "
                f"| {sum(right) / n:.3f} | {compared} | {share['passes']:.2f} "
                f"| {share['columns']:.2f} | {share['seconds']:.2f} |"
            )
    return "\n".join(lines)


def by_family(paths: Sequence[Path]) -> str:
    """Markdown: accuracy on the fixed canvas per family."""
    lines = [
        f"| model | {' | '.join(BENCHMARKS)} | mean |",
        "|---|" + "---:|" * (len(BENCHMARKS) + 1),
    ]
    for path in paths:
        head, records = read(path)
        shares = []
        for family in BENCHMARKS:
            right = [r["right"] for r in records if (r["canvas"], r["family"]) == ("fixed", family)]
            shares.append(sum(right) / len(right))
        cells = " | ".join(f"{share:.3f}" for share in [*shares, sum(shares) / len(shares)])
        lines.append(f"| {head['model']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("run", help="measure a model and write records")
    measured.add_argument("model")
    measured.add_argument("--per-family", type=int, default=500)
    measured.add_argument("--rows", type=int, default=250, help="prompts decoded at once")
    measured.add_argument("--device", default="auto")
    measured.add_argument("--out", type=Path, default=RECORDS)
    shown = commands.add_parser("table", help="print the tables from records")
    shown.add_argument("--records", type=Path, default=RECORDS)
    given = parser.parse_args()
    if given.command == "run":
        print(run(given.model, given.per_family, given.rows, given.device, given.out))
        return
    paths = sorted(given.records.glob("*.jsonl.gz"))
    print(by_family(paths), table(paths), sep="\n\n")


if __name__ == "__main__":
    main()
