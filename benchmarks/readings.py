"""Errors of every interpretation of one probe against the length of the reference answer.

    python -m benchmarks.readings run tiny-llada-base     probes and writes records (a CPU, minutes)
    python -m benchmarks.readings floor                   what no predictor can know, from the generators
    python -m benchmarks.readings table                   prints the tables from records

A length counts the answer's tokens and the slot of the first end token, as LengthDistribution does. The
readings' settings were chosen on validation prompts; tables show test prompts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import lastword
from benchmarks.json_lines import SUFFIX, read_lines, write_lines
from lastword.decoding.running_batch import ModelProbe
from lastword.errors import SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.policies.length.survival import Survival
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Boundary, EndedBy, FirstBoundary, Hazard, Interpretation, TurnEnd
from lastword.tasks import BENCHMARKS, FAMILIES, Example, load_frozen
from lastword.tasks.families import KnownLengths
from training.tasks.generators import generate

RECORDS = Path(__file__).parent / "records" / "readings"
FLOOR = RECORDS / "floor.json"
MODELS = ("tiny-llada-base", "tiny-dream-base", "tiny-llada-instruct", "tiny-dream-instruct")
LIMIT = 256
QUANTILES = (0.5, 0.9, 0.95)
READINGS: dict[str, Interpretation] = {
    "hazard": Hazard(),
    "ended-by": EndedBy(),
    "boundary": Boundary(),
    "first-boundary": FirstBoundary(),
    "turn-end": TurnEnd(),
    "auto": Auto(),
}
PRODUCT = "hazard"  # the paper's
ENOUGH = 10  # answers to one prompt, to speak of their spread
# Questions and writers of each. Prompts for code ask for so many things that the same one seldom recurs.
WRITERS = {"complete_function": (20, 2500), "write_function": (20, 2500)}
Record = dict[str, Any]


def run(name: str, per_family: int, rows: int, out: Path) -> Path:
    """Probe the first test prompts of every family once each; write what every reading says."""
    model: Any = lastword.load(name, device="cpu")
    examples = [e for family in FAMILIES for e in load_frozen("test", family)[:per_family]]
    records = list(measure(model, examples, rows))
    head = {
        "model": Path(name).name,
        "limit": LIMIT,
        "per_family": per_family,
        "quantiles": QUANTILES,
        "torch": torch.__version__,
        "lastword": lastword.__version__,
    }
    return write_lines(out / f"{Path(name).name}{SUFFIX}", head, records)


def asked(tokenizer: TextTokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Return the token ids of prompts, through the chat template if there is one."""
    if tokenizer.chat_template is None:
        return [tokenizer.encode(text) for text in texts]
    return [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]


def measure(model: MaskPredictor, examples: Sequence[Example], rows: int) -> Iterator[Record]:
    """Yield a record per example, in order; prompts of similar length are probed together."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    prompts = asked(tokenizer, [e.prompt for e in examples])
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    results: dict[int, Record] = {}
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        probe = ModelProbe(model, [prompts[index] for index in batch])
        signal = Survival(LIMIT).signal(probe(LIMIT))
        lengths = {name: reading(signal) for name, reading in READINGS.items()}
        choices = Auto().choose(signal)
        for row, index in enumerate(batch):
            example = examples[index]
            results[index] = {
                "family": example.family,
                "length": len(tokenizer.encode(example.answer)) + 1,
                "picked": type(choices[row].interpretation).__name__,
                "mean": {n: round(one.mean[row].item(), 2) for n, one in lengths.items()},
                "quantile": {n: [int(one.quantile(q)[row]) for q in QUANTILES] for n, one in lengths.items()},
            }
            if example.family == "known_hazard":
                truth = true_lengths(example.target)
                results[index] |= {
                    "true_mean": round(truth.mean.item(), 4),
                    "floor": round(deviation(truth), 4),
                    "distance": {n: round(distance(one.row(row), truth), 3) for n, one in lengths.items()},
                }
    return iter([results[index] for index in range(len(examples))])


def true_lengths(target: str) -> LengthDistribution:
    """The distribution a known-hazard prompt names, the end token's slot counted."""
    named = KnownLengths.parse(target)
    density = torch.zeros(1, LIMIT, dtype=torch.float64)
    density[0, named.minimum : named.maximum + 1] = torch.tensor(named.probability).double()
    return LengthDistribution.from_density(density)


def distance(one: LengthDistribution, other: LengthDistribution) -> float:
    """Slots by which mass has to move to make one distribution of the other (Wasserstein)."""
    return (one.survival - other.survival).abs()[..., :-1].sum().item()


def deviation(lengths: LengthDistribution) -> float:
    """Mean distance of a length from the median: the error of the best guess there is."""
    slots = torch.arange(1, lengths.slots + 1)
    return ((slots - lengths.quantile(0.5)).abs() * lengths.density).sum().item()


def floor(questions: int, writers: int, out: Path) -> Path:
    """Many writers answer each question: the spread of lengths among answers to the same prompt.

    A prompt is a question and what it says of the manner, so answers are compared within prompts. Some
    prompts are too rare to be compared; `compared` says what share of the answers is left.
    """
    model: Any = lastword.load(MODELS[0], device="cpu")
    results: dict[str, Record] = {}
    for name in BENCHMARKS:
        posed, answering = WRITERS.get(name, (questions, writers))
        deviations: list[float] = []
        for question in range(posed):
            for answers in by_prompt(name, question, answering).values():
                counts = [len(model.tokenizer.encode(answer)) + 1 for answer in answers]
                deviations += deviations_of(counts) if len(counts) >= ENOUGH else []
        if not deviations:
            raise SettingError(f"no prompt of {name} has {ENOUGH} answers; give more --writers (default: 200)")
        results[name] = {
            "questions": posed,
            "writers": answering,
            "deviation": round(statistics.mean(deviations), 2),
            "compared": round(len(deviations) / (posed * answering), 3),
        }
        print(name, results[name], flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"enough": ENOUGH, "families": results}, indent=1) + "\n")
    return out


def by_prompt(family: str, question: int, writers: int) -> dict[str, list[str]]:
    """Answers of many writers to one question, by the prompt that was made of it."""
    results: dict[str, list[str]] = {}
    for writer in range(writers):
        manner = random.Random(f"{question}/{writer}")
        example = generate(family, random.Random(question), manner)
        results.setdefault(example.prompt, []).append(example.answer)
    return results


def deviations_of(counts: Sequence[int]) -> list[float]:
    """Each count's distance from the median of the others, which is what could be known of it."""
    ordered = sorted(counts)
    return [
        abs(count - statistics.median(ordered[:index] + ordered[index + 1 :])) for index, count in enumerate(ordered)
    ]


def all_records(folder: Path = RECORDS) -> dict[str, list[Record]]:
    """Each model's records, in the order of MODELS."""
    paths = {model: folder / f"{model}{SUFFIX}" for model in MODELS}
    return {model: read_lines(path)[1] for model, path in paths.items() if path.is_file()}


def bias(records: Sequence[Record], reading: str) -> float:
    """Return the distance of the mean prediction from the true mean length, as a share of it."""
    truth = statistics.mean(r["true_mean" if "true_mean" in r else "length"] for r in records)
    return statistics.mean(r["mean"][reading] for r in records) / truth - 1


def error(records: Sequence[Record], reading: str) -> float:
    """Mean absolute error of the predicted mean, in slots."""
    return statistics.mean(abs(r["mean"][reading] - r["length"]) for r in records)


def median_error(records: Sequence[Record], reading: str) -> float:
    """Mean absolute error of the predicted median, in slots."""
    return statistics.mean(abs(r["quantile"][reading][0] - r["length"]) for r in records)


def benchmarks_of(records: Sequence[Record]) -> list[Record]:
    """Without the known-hazard task, which is there for its known truth."""
    return [r for r in records if r["family"] != "known_hazard"]


def overall(models: dict[str, list[Record]], floors: Record) -> str:
    """Markdown: every reading on every model, the five benchmark families together."""
    lines = [
        "| model | reading | mean length | bias | mean abs. error | of the product's | median's error "
        "| longer than the mean | within 90% quantile |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model, records in models.items():
        mine = benchmarks_of(records)
        for name in READINGS:
            within = statistics.mean(r["length"] <= r["quantile"][name][1] for r in mine)
            longer = statistics.mean(r["length"] > math.ceil(r["mean"][name]) for r in mine)
            lines.append(
                f"| {model} | {name} | {statistics.mean(r['mean'][name] for r in mine):.1f} "
                f"| {bias(mine, name):+.1%} | {error(mine, name):.1f} "
                f"| {error(mine, name) / error(mine, PRODUCT):.2f} | {median_error(mine, name):.1f} "
                f"| {longer:.1%} | {within:.1%} |"
            )
        truth = statistics.mean(r["length"] for r in mine)
        least = statistics.mean(floors[f]["deviation"] for f in BENCHMARKS)
        share = least / error(mine, PRODUCT)
        lines.append(f"| {model} | *the writer's choice* | {truth:.1f} | | {least:.1f} | {share:.2f} | | | |")
    return "\n".join(lines)


def by_family(models: dict[str, list[Record]], floors: Record) -> str:
    """Markdown: bias and error per family, the product beside the reading that Auto picks."""
    lines = [f"| model | reading | {' | '.join(FAMILIES)} |", f"|---|---|{'---:|' * len(FAMILIES)}"]
    for model, records in models.items():
        for name in (PRODUCT, "auto"):
            cells = [
                f"{bias(mine, name):+.1%}, {error(mine, name):.1f}"
                for family in FAMILIES
                for mine in [[r for r in records if r["family"] == family]]
            ]
            lines.append(f"| {model} | {name} | {' | '.join(cells)} |")
    known = [r for r in next(iter(models.values())) if r["family"] == "known_hazard"]
    cells = [f"{floors[f]['deviation']:.1f}" for f in BENCHMARKS]
    cells.append(f"{statistics.mean(r['floor'] for r in known):.1f}")
    lines.append(f"| | *the writer's choice* | {' | '.join(cells)} |")
    return "\n".join(lines)


def against_the_truth(models: dict[str, list[Record]]) -> str:
    """Markdown: known-hazard prompts, the predicted distribution against the one the prompt names."""
    lines = [f"| model | {' | '.join(READINGS)} |", f"|---|{'---:|' * len(READINGS)}"]
    for model, records in models.items():
        known = [r for r in records if r["family"] == "known_hazard"]
        cells = [
            f"{bias(known, name):+.1%}, {statistics.mean(r['distance'][name] for r in known):.1f}" for name in READINGS
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picks(models: dict[str, list[Record]]) -> str:
    """Markdown: how often Auto picked which reading, on all six families."""
    names = [type(reading).__name__ for name, reading in READINGS.items() if name != "auto"]
    lines = [f"| model | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for model, records in models.items():
        counts = [sum(r["picked"] == name for r in records) for name in names]
        lines.append(f"| {model} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


# By the name that a page has for them (docs/measured/readings.md).
TABLES: dict[str, Callable[[dict[str, list[Record]], Record], str]] = {
    "readings": overall,
    "readings-families": by_family,
    "readings-known": lambda models, _: against_the_truth(models),
    "readings-picked": lambda models, _: picks(models),
}


def tables(folder: Path = RECORDS) -> dict[str, str]:
    """Every table, from records."""
    models = all_records(folder)
    floors = json.loads(FLOOR.read_text())["families"]
    return {name: make(models, floors) for name, make in TABLES.items()}


def main() -> None:
    """Measure, or print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="probe and write records")
    runs.add_argument("model", nargs="+")
    runs.add_argument("--per-family", type=int, default=200)
    runs.add_argument("--rows", type=int, default=8)
    runs.add_argument("--out", type=Path, default=RECORDS)
    floors = commands.add_parser("floor", help="the spread of lengths among writers of one answer")
    floors.add_argument("--questions", type=int, default=240)
    floors.add_argument("--writers", type=int, default=200)
    floors.add_argument("--out", type=Path, default=FLOOR)
    commands.add_parser("table", help="print the tables from records")
    given = parser.parse_args()
    if given.command == "run":
        for model in given.model:
            print(run(model, given.per_family, given.rows, given.out), flush=True)
    elif given.command == "floor":
        print(floor(given.questions, given.writers, given.out))
    else:
        print(*tables().values(), sep="\n\n")


if __name__ == "__main__":
    main()
