"""Coverage of calibrated bounds on new prompts.

    python -m benchmarks.coverage prompts             write fresh prompts of the test split (a CPU, minutes)
    python -m benchmarks.coverage run                 probe and answer them with every model (a GPU, minutes)
    python -m benchmarks.coverage table               print the tables of the record

The prompts are generated. None of them is frozen, and none was used while the method was developed. A random
half of each family calibrates and the other half tests. Lengths count the slot of the first end token. Two
lengths are bounded: that of the model's answer, which `lastword calibrate` uses, and that of the reference
answer. The record contains the shares that the tables show, not every prompt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import torch

import lastword
from benchmarks.arms import MODELS
from benchmarks.interpretations import tokenize
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

Truth = Literal["own", "reference"]  # the model's answer or the reference answer
RECORD = Path(__file__).parent / "records" / "coverage.json"
PROMPTS = Path("out/coverage/prompts.jsonl.gz")
SEED = 2026  # the frozen prompts have another
DEVELOPMENT = (2025, 4000)  # seed and prompts of the run on which the method was developed
LIMIT = 256
COVERAGES = (0.9, 0.95)
TRUTHS: tuple[Truth, ...] = ("own", "reference")
DRAWS = 100
ANSWERS = Recipe(StopAtEnd(Fixed(LIMIT)), AboveThreshold(0.9), cache=DualCache(), block=32)


Summary = dict[str, Any]  # the results of one model in the record
# Titles of bounds in tables, by their keys in the record.
BOUNDS = {"as read": "none", "one factor": "one factor", "a factor each": "factor per family"}


@dataclass(frozen=True)
class Bounds:
    """The predicted bounds and the two lengths of each prompt of a family."""

    reference: list[int]
    written: list[int | None]  # by the model; None: the answer was truncated
    bounds: dict[float, list[int]]  # by coverage


def fresh(family: str, count: int) -> list[Example]:
    """Return prompts of the test split that were not used in development, the same ones in every call."""
    frozen = {example.prompt for example in load_frozen("test", family)}
    used = _generate(frozen, family, *DEVELOPMENT)
    return _generate(frozen | {example.prompt for example in used}, family, SEED, count)


def _generate(excluded: set[str], family: str, seed: int, count: int) -> list[Example]:
    """Generate `count` test prompts of a family that are not in `excluded`."""
    stream = (example for example in example_stream("test", family, seed) if example.prompt not in excluded)
    return list(islice(stream, count))


def write_prompts(count: int, path: Path) -> None:
    """Generate `count` prompts per family and write them to a file. A GPU is not used."""
    with ProcessPoolExecutor() as pool:
        families = list(pool.map(fresh, BENCHMARKS, [count] * len(BENCHMARKS)))
    lines = [json.dumps([e.family, e.prompt, e.answer]) for examples in families for e in examples]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 9, mtime=0))
    print(f"{path}: {len(lines)} prompts")


def measure(bench: Bench, name: str, family: str, batch_size: int, path: Path) -> Bounds:
    """Return the predicted bounds and the lengths of both answers for each prompt of a family."""
    model = bench.use(name)
    tokenizer = model.tokenizer
    pairs = [
        (prompt, answer)
        for name, prompt, answer in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        if name == family
    ]
    prompts = tokenize(tokenizer, [prompt for prompt, _ in pairs])
    results: dict[int, tuple[int, int | None, list[int]]] = {}
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(order), batch_size):
        indexes = order[first : first + batch_size]
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
        [written for _, written, _ in ordered],
        {share: [bounds[at] for _, _, bounds in ordered] for at, share in enumerate(COVERAGES)},
    )


_BENCH: Bench | None = None


def _measured(job: tuple[str, str, int, str, Path]) -> tuple[Bounds, dict[str, Any]]:
    global _BENCH
    name, family, batch_size, device, path = job
    _BENCH = _BENCH or Bench(device, exclusive=False)
    results = measure(_BENCH, name, family, batch_size, path)
    print(name, family, len(results.written), flush=True)
    return results, environment(_BENCH.model)


def run(models: Sequence[str], batch_size: int, workers: int, device: str, path: Path, out: Path) -> None:
    """Measure every family of every model and update the record; other models in it do not change."""
    jobs = [(name, family, batch_size, device, path) for name in models for family in BENCHMARKS]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = dict(zip(jobs, pool.map(_measured, jobs)))
    record = read(out) if out.exists() else {}
    for name in models:
        families = {job[1]: bounds for job, (bounds, _) in results.items() if job[0] == name}
        machine = next(environment for job, (_, environment) in results.items() if job[0] == name)
        record[name] = {"seed": SEED} | machine | summarise(families)
    write(out, (json.dumps(record, indent=1) + "\n").encode())


def read(path: Path = RECORD) -> dict[str, Summary]:
    """Return the summary of each model."""
    record: dict[str, Summary] = json.loads(path.read_text(encoding="utf-8"))
    return record


# Predicted bound and true length; the length of a truncated answer is infinite.
Pairs = list[tuple[int, float]]


def pairs_of(record: Bounds, truth: Truth, coverage: float) -> Pairs:
    """Return the predicted bound and the true length of each prompt."""
    true = record.reference if truth == "reference" else record.written
    lengths = (math.inf if length is None else length for length in true)
    return list(zip(record.bounds[coverage], lengths, strict=True))


def factor(pairs: Pairs, coverage: float) -> float:
    """Return the factor by which calibration on these pairs multiplies the quantile."""
    return conformal_factor([float(p) for p, _ in pairs], [length for _, length in pairs], coverage)


def covered(pairs: Pairs, scale: float) -> float:
    """Return the share of answers that are not longer than the bound, which is a whole number of slots."""
    return sum(length <= math.ceil(scale * p) for p, length in pairs) / len(pairs)


def halves(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Return a random half for calibration and the other half for the test.

    The generators never repeat a prompt, so late prompts differ a little from early ones, and halves in order
    would not be exchangeable.
    """
    mixed = random.Random(0).sample(pairs, len(pairs))
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def draws(pairs: Pairs, coverage: float) -> list[float]:
    """Return the coverage for many random halves of the prompts."""
    needed = torch.tensor([required_factor(float(p), length) for p, length in pairs])
    chance, half, results = torch.Generator().manual_seed(0), len(pairs) // 2, []
    for _ in range(DRAWS):
        mixed = needed[torch.randperm(len(pairs), generator=chance)]
        scale = conformal_quantile(mixed[:half].sort().values.tolist(), coverage)
        results.append((mixed[half:] <= scale).double().mean().item())
    return results


def summarise(families: Mapping[str, Bounds]) -> Summary:
    """Return the results of one model that the tables need."""
    pairs = {
        (truth, coverage): {family: pairs_of(bounds, truth, coverage) for family, bounds in families.items()}
        for truth in TRUTHS
        for coverage in COVERAGES
    }
    return {
        "prompts": {family: len(bounds.written) for family, bounds in families.items()},
        "covered": [
            {"truth": truth, "coverage": coverage, "bounds": bounds_of(by_family, coverage)}
            for (truth, coverage), by_family in pairs.items()
        ],
        "chance": [
            {"coverage": coverage, "families": {name: spread(pairs_, coverage) for name, pairs_ in by_family.items()}}
            for (truth, coverage), by_family in pairs.items()
            if truth == "own"
        ],
    }


def bounds_of(families: Mapping[str, Pairs], coverage: float) -> dict[str, Any]:
    """Return the coverage without calibration, with one factor for all, and with a factor per family."""
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
            "slots": statistics.mean(math.ceil(scale[f] * p) for f, (_, half) in split.items() for p, _ in half) / mean,
            "families": {family: covered(half, scale[family]) for family, (_, half) in split.items()},
        }
        for title, scale in scales.items()
    }


def spread(pairs: Pairs, coverage: float) -> dict[str, float]:
    """Return the mean and the standard deviation of the coverage over many random halves."""
    shares = draws(pairs, coverage)
    return {"mean": statistics.mean(shares), "deviation": statistics.pstdev(shares)}


def table(record: Mapping[str, Summary], truth: Truth) -> str:
    """Return Markdown with the coverage of each bound in every family."""
    lines = [
        f"| model | bound | mean bound / mean length | all | {' | '.join(BENCHMARKS)} |",
        f"|---|---|---:|---:|{'---:|' * len(BENCHMARKS)}",
    ]
    for model, coverage, title, bound in _bounds(record, truth):
        shares = [bound["families"][family] for family in BENCHMARKS]
        cells = [f"{share:.1%}" for share in (statistics.mean(shares), *shares)]
        lines.append(f"| {model} | {coverage:.0%}, calibration: {title} | {bound['slots']:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_table(record: Mapping[str, Summary], truth: Truth) -> str:
    """Return Markdown with the coverage of each bound over all families, and of the lowest and highest family."""
    heads = [f"{coverage:.0%}: bound | {coverage:.0%}: coverage" for coverage in COVERAGES]
    lines = [f"| model | calibration | {' | '.join(heads)} |", f"|---|---|{'---:|---:|' * len(COVERAGES)}"]
    rows: dict[tuple[str, str], list[str]] = {}
    for model, _, title, bound in _bounds(record, truth):
        shares = bound["families"].values()
        cell = f"{statistics.mean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
        rows.setdefault((model, title), []).extend([f"{bound['slots']:.2f}", cell])
    return "\n".join([*lines, *(f"| {' | '.join([*names, *cells])} |" for names, cells in rows.items())])


def _bounds(record: Mapping[str, Summary], truth: Truth) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
    """Yield model, coverage, title and results of every bound on lengths of one kind."""
    for model, summary in record.items():
        for row in (row for row in summary["covered"] if row["truth"] == truth):
            for key, bound in row["bounds"].items():
                yield model, row["coverage"], BOUNDS[key], bound


def chance(record: Mapping[str, Summary]) -> str:
    """Return Markdown with the coverage of a factor per family over many random halves: mean and spread in points."""
    lines = [f"| model | bound | {' | '.join(BENCHMARKS)} |", f"|---|---|{'---:|' * len(BENCHMARKS)}"]
    for model, summary in record.items():
        for row in summary["chance"]:
            families = [row["families"][family] for family in BENCHMARKS]
            cells = [f"{family['mean']:.1%} ± {100 * family['deviation']:.1f}" for family in families]
            lines.append(f"| {model} | {row['coverage']:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_table(path: Path = RECORD) -> str:
    """Return the table of docs/measured/coverage.md."""
    return summary_table(read(path), "own")


def all_tables(path: Path = RECORD) -> list[str]:
    """Return the coverage of every family for both kinds of lengths, and the spread over random halves."""
    record = read(path)
    return [table(record, "own"), table(record, "reference"), chance(record)]


def main() -> None:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    makes = commands.add_parser("prompts", help="generate prompts")
    makes.add_argument("--per-family", type=int, default=8000)
    makes.add_argument("--path", type=Path, default=PROMPTS)
    runs = commands.add_parser("run", help="probe and answer them")
    runs.add_argument("--models", nargs="+", default=list(MODELS))
    runs.add_argument("--batch-size", type=int, default=500, help="prompts decoded at the same time")
    runs.add_argument("--workers", type=int, default=1)
    runs.add_argument("--device", default="auto")
    runs.add_argument("--path", type=Path, default=PROMPTS)
    runs.add_argument("--out", type=Path, default=RECORD)
    commands.add_parser("table", help="print the tables of the record")
    options = parser.parse_args()
    if options.command == "prompts":
        write_prompts(options.per_family, options.path)
    elif options.command == "run":
        run(options.models, options.batch_size, options.workers, options.device, options.path, options.out)
    else:
        print(*all_tables(), sep="\n\n")


if __name__ == "__main__":
    main()
