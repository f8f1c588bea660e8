"""Every decoding part alone and the combinations that should pay, on the embedded models.

    python -m benchmarks.parts run tiny-llada-base --per-family 300     a GPU; killed, it resumes
    python -m benchmarks.parts keep                                     the records, small enough to commit
    python -m benchmarks.parts table                                    Markdown from the kept records

All on a canvas of at most 256 slots. "Alone" changes one axis of the plain recipe (fixed canvas, one token
a pass); the combinations start from the predicted length.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lastword
from lastword.errors import SettingError
from lastword.eval import Journal, evaluate, tiny_tasks
from lastword.eval.journal import Record, read_records
from lastword.eval.table import table
from lastword.recipe import Recipe

KEPT = Path(__file__).parent / "records" / "parts"
RAW = Path("out/parts")
SURVIVAL = {"length": "survival:256"}
PLAIN = {"length": "fixed:256"}
BLOCK = {"block": 32}
THRESHOLD = {"unmask": "threshold:0.9"}

CHOICES: dict[str, dict[str, Any]] = {
    "fixed 256, one token a pass": PLAIN,
    # how long
    "survival": SURVIVAL,
    "survival, quantile 0.9": {"length": "survival:256,estimate=quantile:0.9"},
    "survival at step 32": {
        "length": {"name": "survival-at-step", "step": 32, "length": "survival:256"}
    },
    "stop at end": {"length": "stop-at-end:fixed:256", **BLOCK},
    "survival, grow when full": {
        "length": {"name": "grow-when-full", "length": "survival:256", "limit": 256}, **BLOCK
    },
    "DAEDAL": {"length": {"name": "daedal", "limit": 256}, **THRESHOLD, **BLOCK},
    "rho-EOS": {"length": {"name": "rho-eos", "limit": 256}, **THRESHOLD, **BLOCK},
    # which masks
    "two tokens a pass": {**PLAIN, "unmask": "most-confident:2"},
    "threshold 0.9": {**PLAIN, **THRESHOLD, **BLOCK},
    "factor 1": {**PLAIN, "unmask": "factor:1.0", **BLOCK},
    "entropy bound 0.1": {**PLAIN, "unmask": "entropy-bound:0.1"},
    "SlowFast": {**PLAIN, "unmask": "slow-fast"},
    "MaskGIT, cosine, two a pass": {**PLAIN, "unmask": "maskgit:cosine:2.0"},
    # when to stop refining
    "Prophet": {**PLAIN, "commit": "prophet"},
    "stable margin": {**PLAIN, "commit": "stable-margin"},
    # what to recompute
    "prefix cache": {**PLAIN, "cache": "prefix", **BLOCK},
    "dual cache": {**PLAIN, "cache": "dual", **BLOCK},
    "feature cache 25, 5, 0.25": {
        **PLAIN, "cache": "feature:25,response_interval=5,share=0.25"
    },
    # together
    "survival + two tokens a pass": {**SURVIVAL, "unmask": "most-confident:2"},
    "survival + threshold": {**SURVIVAL, **THRESHOLD, **BLOCK},
    "survival + entropy bound": {**SURVIVAL, "unmask": "entropy-bound:0.1"},
    "survival + SlowFast": {**SURVIVAL, "unmask": "slow-fast"},
    "survival + stable margin": {**SURVIVAL, "commit": "stable-margin"},
    "survival + threshold + prefix cache": {**SURVIVAL, **THRESHOLD, **BLOCK, "cache": "prefix"},
    "survival + threshold + dual cache": {**SURVIVAL, **THRESHOLD, **BLOCK, "cache": "dual"},
    "survival + threshold + feature cache": {
        **SURVIVAL, **THRESHOLD, **BLOCK, "cache": "feature:25,response_interval=5,share=0.25"
    },
    "stop at end, grow when full, survival + threshold + dual cache": {
        "length": {
            "name": "stop-at-end",
            "length": {"name": "grow-when-full", "length": "survival:256", "limit": 256},
        },
        **THRESHOLD, **BLOCK, "cache": "dual",
    },
    "stop at end of fixed 256 + threshold + dual cache": {
        "length": "stop-at-end:fixed:256", **THRESHOLD, **BLOCK, "cache": "dual"
    },
}  # fmt: skip


def recipes() -> dict[str, Recipe]:
    """The recipes by title. One that composition refuses is an error here: the list is ours."""
    return {title: Recipe.from_json(json.dumps(choice)) for title, choice in CHOICES.items()}


def run(name: str, per_family: int, rows: int, device: str, titles: Iterable[str]) -> None:
    """Measure the recipes one after another; a second call goes on where the first was stopped."""
    model: Any = lastword.load(name, device=device)
    tasks, journal = tiny_tasks(), Journal(RAW / f"{name}.jsonl")
    known = recipes()
    warm = Journal(RAW / "warm-up.jsonl")  # kernels are chosen on first use
    evaluate(model, name, tasks, Recipe.from_json('{"length": "fixed:8"}'), warm, limit=8, rows=40)
    warm.path.unlink()
    for title in titles:
        if title not in known:
            raise SettingError(f"there is no recipe {title!r}; known: {'; '.join(known)}")
        mine = evaluate(model, name, tasks, known[title], journal, limit=per_family, rows=rows)
        right = sum(record["score"] for record in mine) / len(mine)
        seconds = sum(record["batch_seconds"] / record["rows"] for record in mine)
        print(f"{name} | {title} | {right:.3f} | {seconds:.1f} s", flush=True)


def keep() -> None:
    """Copy the records of RAW, without texts, to where they are committed."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in sorted(RAW.glob("*.jsonl")):
        lines = [json.dumps(_kept(record)) for record in read_records(path)]
        target = KEPT / f"{path.stem}.jsonl.gz"
        target.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))
        print(f"{target}: {len(lines)} records, {target.stat().st_size // 1024} KiB")


def _kept(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "text"}


def markdown(folder: Path = KEPT) -> str:
    """The table of every model, recipes in the order of CHOICES."""
    order = [json.dumps(json.loads(recipe.to_json())) for recipe in recipes().values()]
    titles = dict(zip(order, CHOICES))
    records = [r for r in read_records(folder) if json.dumps(r["recipe"]) in titles]
    records.sort(key=lambda r: (r["model"], order.index(json.dumps(r["recipe"]))))
    return table(records, titles)


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("run", help="measure a model")
    measured.add_argument("model")
    measured.add_argument("--per-family", type=int, default=300)
    measured.add_argument("--rows", type=int, default=500, help="prompts decoded at once")
    measured.add_argument("--device", default="auto")
    measured.add_argument("--only", action="append", help="a recipe's title; may be repeated")
    commands.add_parser("keep", help="copy the records to where they are committed")
    commands.add_parser("table", help="print the table from the committed records")
    given = parser.parse_args()
    if given.command == "run":
        run(given.model, given.per_family, given.rows, given.device, given.only or CHOICES)
    elif given.command == "keep":
        keep()
    else:
        print(markdown())


if __name__ == "__main__":
    main()
