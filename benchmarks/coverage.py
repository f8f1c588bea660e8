"""How often a calibrated bound holds on prompts it has not seen, by the thousand.

    python -m benchmarks.coverage prompts             fresh prompts of the test split (a CPU, minutes)
    python -m benchmarks.coverage run                 probe and answer them, all four models (a GPU, minutes)
    python -m benchmarks.coverage table               print the tables from records

Prompts are generated, none of them among the frozen ones or among those the method was settled on. A random
half of each family calibrates, the other half is the test. Lengths count the slot of the first end token. Two
truths are bounded: the length of the model's own answer, which is what `lastword calibrate` learns from, and
that of the reference answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

import lastword
from benchmarks.arms import MODELS
from benchmarks.readings import asked
from benchmarks.study import Bench
from lastword.decoding.planning import ModelProbe
from lastword.engines.base import environment
from lastword.evaluate import packed
from lastword.io.schema import STRICT, Text
from lastword.policies.cache import DualCache
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.policies.length.wrappers import StopAtEnd
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe
from lastword.survival.conformal import conformal_factor, conformal_quantile, required_factor
from lastword.survival.interpretation import Auto
from lastword.tasks import BENCHMARKS, Example
from lastword.tasks.frozen import load_frozen
from training.tasks.generators import example_stream

RECORDS = Path(__file__).parent / "records" / "coverage"
PROMPTS = Path("out/coverage/prompts.jsonl.gz")
SEED = 2026  # the frozen prompts have another
SETTLED = (
    2025,
    4000,
)  # seed and prompts of the run from which whole slots and random halves were learnt
LIMIT = 256
COVERAGES = (0.9, 0.95)
DRAWS = 100
ANSWERS = Recipe(StopAtEnd(Fixed(LIMIT)), AboveThreshold(0.9), cache=DualCache(), block=32)
ENDING = ".columns.xz"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class About:
    """What the prompts of one model and family share."""

    model: Text
    family: Text
    seed: int | None = None
    hardware: Text
    dtype: Text
    versions: dict[Text, Text]


_ABOUT: TypeAdapter[About] = TypeAdapter(About)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What was said of each prompt of a family, and what came."""

    about: About
    reference: list[int]
    own: list[int | None]  # None where the answer was cut
    bounds: dict[float, list[int]]  # by coverage

    def pack(self) -> bytes:
        """As differences: an answer is often as long as the reference, and bounds lie together."""
        reference = np.array(self.reference)
        low, high = (np.array(self.bounds[coverage]) for coverage in COVERAGES)
        found = {
            "reference": reference,
            "own": np.array([length or 0 for length in self.own]) - reference,
            "low": low,
            "high": high - low,
        }
        return packed.pack(_ABOUT.dump_json(self.about), found)

    @classmethod
    def unpack(cls, data: bytes) -> Bounds:
        """The inverse of `pack`."""
        about, found = packed.unpack(data)
        reference, low = found["reference"], found["low"]
        own = [length or None for length in (found["own"] + reference).tolist()]
        bounds = dict(zip(COVERAGES, (low.tolist(), (low + found["high"]).tolist())))
        return cls(_ABOUT.validate_json(about), reference.tolist(), own, bounds)


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
    """What was predicted for each prompt of a family, and how long its two answers are."""
    model = bench.use(name)
    tokenizer = model.tokenizer
    pairs = [
        (prompt, answer)
        for mine, prompt, answer in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        if mine == family
    ]
    prompts = asked(tokenizer, [prompt for prompt, _ in pairs])
    found: dict[int, tuple[int, int | None, list[int]]] = {}
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
            found[index] = (
                len(tokenizer.encode(pairs[index][1])) + 1,
                len(answers[row].tokens) + 1 if ended else None,
                [int(bound[row]) for bound in bounds],
            )
    ordered = [found[index] for index in range(len(prompts))]
    return Bounds(
        About(model=name, family=family, seed=SEED, **environment(model)),
        [reference for reference, _, _ in ordered],
        [own for _, own, _ in ordered],
        {share: [said[at] for _, _, said in ordered] for at, share in enumerate(COVERAGES)},
    )


_BENCH: Bench | None = None


def _measured(job: tuple[str, str, int, str, Path]) -> Bounds:
    global _BENCH
    name, family, rows, device, path = job
    _BENCH = _BENCH or Bench(device, alone=False)
    record = measure(_BENCH, name, family, rows, path)
    print(name, family, len(record.own), flush=True)
    return record


def run(models: Sequence[str], rows: int, workers: int, device: str, path: Path, out: Path) -> None:
    """Every family of every model, a file each."""
    jobs = [(name, family, rows, device, path) for name in models for family in BENCHMARKS]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for record in pool.map(_measured, jobs):
            path = out / record.about.model / f"{record.about.family}{ENDING}"
            packed.write(path, record.pack())


def read(folder: Path = RECORDS) -> dict[str, dict[str, Bounds]]:
    """Each model's families."""
    found: dict[str, dict[str, Bounds]] = {}
    for model in MODELS:
        paths = sorted((folder / model).glob(f"*{ENDING}"))
        records = [Bounds.unpack(path.read_bytes()) for path in paths]
        if records:
            found[model] = {record.about.family: record for record in records}
    return found


# Predicted bound and true length, infinite where the answer was cut.
Pairs = list[tuple[int, float]]
Truth = Literal["own", "reference"]


def pairs_of(record: Bounds, truth: Truth, coverage: float) -> Pairs:
    """What was said and what came."""
    came = record.reference if truth == "reference" else record.own
    lengths = (math.inf if length is None else length for length in came)
    return list(zip(record.bounds[coverage], lengths, strict=True))


def factor(pairs: Pairs, coverage: float) -> float:
    """What calibration on these multiplies the quantile by."""
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
    chance, half, found = torch.Generator().manual_seed(0), len(pairs) // 2, []
    for _ in range(DRAWS):
        mixed = needed[torch.randperm(len(pairs), generator=chance)]
        scale = conformal_quantile(mixed[:half].sort().values.tolist(), coverage)
        found.append((mixed[half:] <= scale).double().mean().item())
    return found


def table(models: dict[str, dict[str, Bounds]], truth: Truth) -> str:
    """Markdown: coverage as read, with one factor for all, and with a factor a family."""
    lines = [
        f"| model | bound | slots of the true mean | all | {' | '.join(BENCHMARKS)} |",
        f"|---|---|---:|---:|{'---:|' * len(BENCHMARKS)}",
    ]
    for model, families in models.items():
        for coverage in COVERAGES:
            split = {f: halves(pairs_of(families[f], truth, coverage)) for f in BENCHMARKS}
            known = [pair for mine, _ in split.values() for pair in mine]
            new = [pair for _, mine in split.values() for pair in mine]
            mean = statistics.mean(length for _, length in new if length < math.inf)
            for title, scales in (
                ("as read", dict.fromkeys(BENCHMARKS, 1.0)),
                ("one factor", dict.fromkeys(BENCHMARKS, factor(known, coverage))),
                ("a factor each", {f: factor(split[f][0], coverage) for f in BENCHMARKS}),
            ):
                shares = [covered(split[f][1], scales[f]) for f in BENCHMARKS]
                spent = [math.ceil(scales[f] * p) for f in BENCHMARKS for p, _ in split[f][1]]
                cells = [f"{share:.1%}" for share in (statistics.mean(shares), *shares)]
                lines.append(
                    f"| {model} | {coverage:.0%} {title} | {statistics.mean(spent) / mean:.2f} "
                    f"| {' | '.join(cells)} |"
                )
    return "\n".join(lines)


def chance(models: dict[str, dict[str, Bounds]], truth: Truth) -> str:
    """Markdown: coverage with a factor each over many halvings, its mean and spread in points."""
    lines = [
        f"| model | bound | {' | '.join(BENCHMARKS)} |",
        f"|---|---|{'---:|' * len(BENCHMARKS)}",
    ]
    for model, families in models.items():
        for coverage in COVERAGES:
            found = [draws(pairs_of(families[f], truth, coverage), coverage) for f in BENCHMARKS]
            cells = [f"{statistics.mean(d):.1%} ± {100 * statistics.pstdev(d):.1f}" for d in found]
            lines.append(f"| {model} | {coverage:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(folder: Path = RECORDS) -> dict[str, str]:
    """Every table of docs/measured/coverage.md, by name."""
    models = read(folder)
    return {
        "covered-own": table(models, "own"),
        "covered-reference": table(models, "reference"),
        "covered-chance": chance(models, "own"),
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
    runs.add_argument("--out", type=Path, default=RECORDS)
    commands.add_parser("table", help="print the tables from records")
    given = parser.parse_args()
    if given.command == "prompts":
        write_prompts(given.per_family, given.path)
    elif given.command == "run":
        run(given.models, given.rows, given.workers, given.device, given.path, given.out)
    else:
        print(*tables().values(), sep="\n\n")


if __name__ == "__main__":
    main()
