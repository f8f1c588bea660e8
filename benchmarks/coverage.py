"""Coverage of calibrated bounds on new prompts.

    python -m benchmarks.coverage prompts             write fresh prompts of the test split (a CPU, minutes)
    python -m benchmarks.coverage run                 probe and answer them with every model (a GPU, minutes)
    python -m benchmarks.coverage table               print the tables of the record

Prompts are generated; none of them is frozen, and none was used while the method was developed. A random
half of each family calibrates, the other half tests. Lengths count the slot of the first end token. Two
lengths are bounded: that of the model's own answer, which `lastword calibrate` learns from, and that of the
reference answer. The record has the shares that the tables show, and not every prompt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import torch

import lastword
from benchmarks.arms import MODELS
from benchmarks.readings import asked
from benchmarks.study import Bench
from lastword.decoding.running_batch import ModelProbe
from lastword.engines.base import environment
from lastword.io.files import write
from lastword.policies.cache import DualCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.survival.conformal import conformal_factor, conformal_quantile, required_factor
from lastword.survival.interpretation import Auto
from lastword.tasks import BENCHMARKS, Example, load_frozen
from training.tasks.generators import example_stream

Truth = Literal["own", "reference"]
RECORD = Path(__file__).parent / "records" / "coverage.json"
PROMPTS = Path("out/coverage/prompts.jsonl.gz")
SEED = 2026  # the frozen prompts have another
SETTLED = (2025, 4000)  # seed and prompts of the run from which whole slots and random halves were learnt
LIMIT = 256
COVERAGES = (0.9, 0.95)
TRUTHS: tuple[Truth, ...] = ("own", "reference")
DRAWS = 100
ANSWERS = Recipe(StopAtEnd(Fixed(LIMIT)), AboveThreshold(0.9), cache=DualCache(), block=32)


Summary = dict[str, Any]  # of one model, as the record has it


@dataclass(frozen=True)
class Bounds:
    """The predicted bounds and the two lengths of each prompt of a family."""

    reference: list[int]
    own: list[int | None]  # None: the answer was truncated
    bounds: dict[float, list[int]]  # by coverage


def fresh(family: str, count: int) -> list[Example]:
    """Prompts of the test split that nothing was learnt from, the same ones every time."""
    frozen = {example.prompt for example in load_frozen("test", family)}
    resolved = _unlike(frozen, family, *SETTLED)
    return _unlike(frozen | {example.prompt for example in resolved}, family, SEED, count)


def _unlike(seen: set[str], family: str, seed: int, count: int) -> list[Example]:
    made = (e for e in example_stream("test", family, seed) if e.prompt not in seen)
    return list(islice(made, count))


def write_prompts(count: int, path: Path) -> None:
    """Generated where there is time: a GPU is not needed for it."""
    with ProcessPoolExecutor() as pool:
        made = list(pool.map(fresh, BENCHMARKS, [count] * len(BENCHMARKS)))
    lines = [json.dumps([e.family, e.prompt, e.answer]) for own in made for e in own]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))
    print(f"{path}: {len(lines)} prompts")


def measure(bench: Bench, name: str, family: str, rows: int, path: Path) -> Bounds:
    """Return the predicted bounds and the lengths of both answers for each prompt of a family."""
    model = bench.use(name)
    tokenizer = model.tokenizer
    pairs = [
        (prompt, answer)
        for mine, prompt, answer in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        if mine == family
    ]
    prompts = asked(tokenizer, [prompt for prompt, _ in pairs])
    results: dict[int, tuple[int, int | None, list[int]]] = {}
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), rows):
        indexes = order[first : first + rows]
        batch = [prompts[index] for index in indexes]
        probe = ModelProbe(model, batch)
        lengths = Auto()(Survival(LIMIT).signal(probe(LIMIT)))
        bounds = [lengths.quantile(coverage).tolist() for coverage in COVERAGES]
        answers = lastword.generate(model, batch, recipe=ANSWERS, seed=0)
        for row, index in enumerate(indexes):
            ended = answers[row].finish is lastword.Finish.ENDED
            results[index] = (
                len(tokenizer.encode(pairs[index][1])) + 1,
                len(answers[row].tokens) + 1 if ended else None,
                [int(bound[row]) for bound in bounds],
            )
    ordered = [results[index] for index in range(len(prompts))]
    return Bounds(
        [reference for reference, _, _ in ordered],
        [own for _, own, _ in ordered],
        {share: [said[at] for _, _, said in ordered] for at, share in enumerate(COVERAGES)},
    )


_BENCH: Bench | None = None


def _measured(job: tuple[str, str, int, str, Path]) -> tuple[Bounds, dict[str, Any]]:
    global _BENCH
    name, family, rows, device, path = job
    _BENCH = _BENCH or Bench(device, alone=False)
    results = measure(_BENCH, name, family, rows, path)
    print(name, family, len(results.own), flush=True)
    return results, environment(_BENCH.model)


def run(models: Sequence[str], rows: int, workers: int, device: str, path: Path, out: Path) -> None:
    """Measure every family of every model and write the record; other models in it are left as they are."""
    jobs = [(name, family, rows, device, path) for name in models for family in BENCHMARKS]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = dict(zip(jobs, pool.map(_measured, jobs)))
    record = read(out) if out.exists() else {}
    for name in models:
        own = {job[1]: bounds for job, (bounds, _) in results.items() if job[0] == name}
        where = next(about for job, (_, about) in results.items() if job[0] == name)
        record[name] = {"seed": SEED} | where | summarise(own)
    write(out, (json.dumps(record, indent=1) + "\n").encode())


def read(path: Path = RECORD) -> dict[str, Summary]:
    """Return the summary of each model."""
    record: dict[str, Summary] = json.loads(path.read_text(encoding="utf-8"))
    return record


# Predicted bound and true length, infinite where the answer was cut.
Pairs = list[tuple[int, float]]


def pairs_of(record: Bounds, truth: Truth, coverage: float) -> Pairs:
    """Return the predicted bound and the true length of each prompt."""
    came = record.reference if truth == "reference" else record.own
    lengths = (math.inf if length is None else length for length in came)
    return list(zip(record.bounds[coverage], lengths, strict=True))


def factor(pairs: Pairs, coverage: float) -> float:
    """Return the factor by which calibration on these pairs multiplies the quantile."""
    return conformal_factor([float(p) for p, _ in pairs], [length for _, length in pairs], coverage)


def covered(pairs: Pairs, scale: float) -> float:
    """Share of answers no longer than the bound, which is a whole number of slots."""
    return sum(length <= math.ceil(scale * p) for p, length in pairs) / len(pairs)


def halves(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """A random half to calibrate on and the other to test.

    Generation never repeats a prompt, so prompts made late are not quite like those made early, and halves
    in order would not be exchangeable.
    """
    mixed = random.Random(0).sample(pairs, len(pairs))
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def draws(pairs: Pairs, coverage: float) -> list[float]:
    """Coverage over many ways to halve the prompts: what belongs to chance."""
    needed = torch.tensor([required_factor(float(p), length) for p, length in pairs])
    chance, half, results = torch.Generator().manual_seed(0), len(pairs) // 2, []
    for _ in range(DRAWS):
        mixed = needed[torch.randperm(len(pairs), generator=chance)]
        scale = conformal_quantile(mixed[:half].sort().values.tolist(), coverage)
        results.append((mixed[half:] <= scale).double().mean().item())
    return results


def summarise(families: Mapping[str, Bounds]) -> Summary:
    """Return what the tables show of one model."""
    pairs = {
        (truth, coverage): {family: pairs_of(own, truth, coverage) for family, own in families.items()}
        for truth in TRUTHS
        for coverage in COVERAGES
    }
    return {
        "prompts": {family: len(own.own) for family, own in families.items()},
        "covered": [
            {"truth": truth, "coverage": coverage, "bounds": bounds_of(own, coverage)}
            for (truth, coverage), own in pairs.items()
        ],
        "chance": [
            {"coverage": coverage, "families": {family: spread(own[family], coverage) for family in own}}
            for (truth, coverage), own in pairs.items()
            if truth == "own"
        ],
    }


def bounds_of(families: Mapping[str, Pairs], coverage: float) -> dict[str, Any]:
    """Return the share that is covered as read, with one factor for all, and with a factor per family."""
    split = {family: halves(pairs) for family, pairs in families.items()}
    known = [pair for half, _ in split.values() for pair in half]
    new = [pair for _, half in split.values() for pair in half]
    mean = statistics.mean(length for _, length in new if length < math.inf)
    scales = {
        "as read": dict.fromkeys(split, 1.0),
        "one factor": dict.fromkeys(split, factor(known, coverage)),
        "a factor each": {family: factor(half, coverage) for family, (half, _) in split.items()},
    }
    return {
        title: {
            "slots": statistics.mean(math.ceil(own[f] * p) for f, (_, half) in split.items() for p, _ in half) / mean,
            "families": {family: covered(half, own[family]) for family, (_, half) in split.items()},
        }
        for title, own in scales.items()
    }


def spread(pairs: Pairs, coverage: float) -> dict[str, float]:
    """Return the mean and the deviation of the coverage over many halvings."""
    shares = draws(pairs, coverage)
    return {"mean": statistics.mean(shares), "deviation": statistics.pstdev(shares)}


def table(record: Mapping[str, Summary], truth: Truth) -> str:
    """Return Markdown: coverage as read, with one factor for all, and with a factor per family."""
    lines = [
        f"| model | bound | slots of the true mean | all | {' | '.join(BENCHMARKS)} |",
        f"|---|---|---:|---:|{'---:|' * len(BENCHMARKS)}",
    ]
    for model, summary in record.items():
        for row in (row for row in summary["covered"] if row["truth"] == truth):
            for title, bound in row["bounds"].items():
                shares = [bound["families"][family] for family in BENCHMARKS]
                cells = [f"{share:.1%}" for share in (statistics.mean(shares), *shares)]
                bound_cells = f"{row['coverage']:.0%} {title} | {bound['slots']:.2f}"
                lines.append(f"| {model} | {bound_cells} | {' | '.join(cells)} |")
    return "\n".join(lines)


def chance(record: Mapping[str, Summary]) -> str:
    """Return Markdown: coverage with a factor per family over many halvings, mean and spread in points."""
    lines = [f"| model | bound | {' | '.join(BENCHMARKS)} |", f"|---|---|{'---:|' * len(BENCHMARKS)}"]
    for model, summary in record.items():
        for row in summary["chance"]:
            families = [row["families"][family] for family in BENCHMARKS]
            cells = [f"{one['mean']:.1%} ± {100 * one['deviation']:.1f}" for one in families]
            lines.append(f"| {model} | {row['coverage']:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(path: Path = RECORD) -> dict[str, str]:
    """Return every table of docs/measured/coverage.md by name."""
    record = read(path)
    return {
        "covered-own": table(record, "own"),
        "covered-reference": table(record, "reference"),
        "covered-chance": chance(record),
    }


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    makes = commands.add_parser("prompts", help="generate prompts")
    makes.add_argument("--per-family", type=int, default=8000)
    makes.add_argument("--path", type=Path, default=PROMPTS)
    runs = commands.add_parser("run", help="probe and answer them")
    runs.add_argument("--models", nargs="+", default=list(MODELS))
    runs.add_argument("--rows", type=int, default=500)
    runs.add_argument("--workers", type=int, default=1)
    runs.add_argument("--device", default="auto")
    runs.add_argument("--path", type=Path, default=PROMPTS)
    runs.add_argument("--out", type=Path, default=RECORD)
    commands.add_parser("table", help="print the tables of the record")
    given = parser.parse_args()
    if given.command == "prompts":
        write_prompts(given.per_family, given.path)
    elif given.command == "run":
        run(given.models, given.rows, given.workers, given.device, given.path, given.out)
    else:
        print(*tables().values(), sep="\n\n")


if __name__ == "__main__":
    main()
