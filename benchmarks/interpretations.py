"""Errors of every interpretation of one probe compared with the length of the reference answer.

    python -m benchmarks.interpretations run tiny-llada-base     probe and write records (a CPU, minutes)
    python -m benchmarks.interpretations floor                   measure the error that no predictor can avoid
    python -m benchmarks.interpretations table                   print all tables of the records

A length counts the tokens of the answer and the slot of its first end token, as LengthDistribution does. The
settings of the interpretations were chosen on validation prompts; the tables are about test prompts.
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

RECORDS = Path(__file__).parent / "records" / "interpretations"
FLOOR = RECORDS / "floor.json"
MODELS = ("tiny-llada-base", "tiny-dream-base", "tiny-llada-instruct", "tiny-dream-instruct")
LIMIT = 256
QUANTILES = (0.5, 0.9, 0.95)
INTERPRETATIONS: dict[str, Interpretation] = {
    "hazard": Hazard(),
    "ended-by": EndedBy(),
    "boundary": Boundary(),
    "first-boundary": FirstBoundary(),
    "turn-end": TurnEnd(),
    "auto": Auto(),
}
PRODUCT = "hazard"  # the paper's
ON_PAGE = ("hazard", "ended-by", "boundary", "first-boundary", "auto")  # rows of docs/measured/interpretations.md
MIN_ANSWERS = 10  # answers to one prompt, for a spread of their lengths
# Questions per family, and writers per question. Prompts for code have many attributes, so equal prompts are rare.
WRITERS = {"complete_function": (20, 2500), "write_function": (20, 2500)}
Record = dict[str, Any]


def run(name: str, per_family: int, batch_size: int, out: Path) -> Path:
    """Probe the first test prompts of every family and write the lengths of every interpretation."""
    model: Any = lastword.load(name, device="cpu")
    examples = [example for family in FAMILIES for example in load_frozen("test", family)[:per_family]]
    records = list(measure(model, examples, batch_size))
    head = {
        "model": Path(name).name,
        "limit": LIMIT,
        "per_family": per_family,
        "quantiles": QUANTILES,
        "torch": torch.__version__,
        "lastword": lastword.__version__,
    }
    return write_lines(out / f"{Path(name).name}{SUFFIX}", head, records)


def tokenize(tokenizer: TextTokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Return the token ids of prompts, through the chat template if there is one."""
    if tokenizer.chat_template is None:
        return [tokenizer.encode(text) for text in texts]
    return [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]


def measure(model: MaskPredictor, examples: Sequence[Example], batch_size: int) -> Iterator[Record]:
    """Yield a record per example, in order; prompts of similar length are probed together."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    prompts = tokenize(tokenizer, [example.prompt for example in examples])
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    results: dict[int, Record] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        probe = ModelProbe(model, [prompts[index] for index in batch])
        signal = Survival(LIMIT).signal(probe(LIMIT))
        predicted = {name: interpretation(signal) for name, interpretation in INTERPRETATIONS.items()}
        choices = Auto().choose(signal)
        for row, index in enumerate(batch):
            example = examples[index]
            results[index] = {
                "family": example.family,
                "length": len(tokenizer.encode(example.answer)) + 1,
                "picked": type(choices[row].interpretation).__name__,
                "mean": {name: round(d.mean[row].item(), 2) for name, d in predicted.items()},
                "quantile": {name: [int(d.quantile(q)[row]) for q in QUANTILES] for name, d in predicted.items()},
            }
            if example.family == "known_hazard":
                truth = true_lengths(example.target)
                results[index] |= {
                    "true_mean": round(truth.mean.item(), 4),
                    "floor": round(deviation(truth), 4),
                    "distance": {name: round(distance(d.row(row), truth), 3) for name, d in predicted.items()},
                }
    return iter([results[index] for index in range(len(examples))])


def true_lengths(target: str) -> LengthDistribution:
    """Return the distribution that a known-hazard prompt names, the slot of the end token included."""
    named = KnownLengths.parse(target)
    density = torch.zeros(1, LIMIT, dtype=torch.float64)
    density[0, named.minimum : named.maximum + 1] = torch.tensor(named.probability).double()
    return LengthDistribution.from_density(density)


def distance(first: LengthDistribution, second: LengthDistribution) -> float:
    """Return the Wasserstein distance of two distributions, in slots."""
    return (first.survival - second.survival).abs()[..., :-1].sum().item()


def deviation(lengths: LengthDistribution) -> float:
    """Return the mean distance of a length from the median: the error of the best constant prediction."""
    slots = torch.arange(1, lengths.slots + 1)
    return ((slots - lengths.quantile(0.5)).abs() * lengths.density).sum().item()


def measure_floor(questions: int, writers: int, out: Path) -> Path:
    """Measure the spread of lengths among answers of many writers to the same prompt, and write it.

    A prompt consists of a question and requested properties of the answer, so answers are compared within
    prompts. Some prompts are too rare to be compared; `compared` is the share of the answers that is left.
    """
    model: Any = lastword.load(MODELS[0], device="cpu")
    results: dict[str, Record] = {}
    for name in BENCHMARKS:
        num_questions, num_writers = WRITERS.get(name, (questions, writers))
        deviations: list[float] = []
        for question in range(num_questions):
            for answers in by_prompt(name, question, num_writers).values():
                counts = [len(model.tokenizer.encode(answer)) + 1 for answer in answers]
                deviations += deviations_of(counts) if len(counts) >= MIN_ANSWERS else []
        if not deviations:
            raise SettingError(f"no prompt of {name} has {MIN_ANSWERS} answers; give more --writers (default: 200)")
        results[name] = {
            "questions": num_questions,
            "writers": num_writers,
            "deviation": round(statistics.mean(deviations), 2),
            "compared": round(len(deviations) / (num_questions * num_writers), 3),
        }
        print(name, results[name], flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"enough": MIN_ANSWERS, "families": results}, indent=1) + "\n")
    return out


def by_prompt(family: str, question: int, writers: int) -> dict[str, list[str]]:
    """Return the answers of many writers to one question, by prompt."""
    results: dict[str, list[str]] = {}
    for writer in range(writers):
        manner = random.Random(f"{question}/{writer}")
        example = generate(family, random.Random(question), manner)
        results.setdefault(example.prompt, []).append(example.answer)
    return results


def deviations_of(counts: Sequence[int]) -> list[float]:
    """Return the distance of each count from the median of the others."""
    ordered = sorted(counts)
    return [
        abs(count - statistics.median(ordered[:index] + ordered[index + 1 :])) for index, count in enumerate(ordered)
    ]


def all_records(folder: Path = RECORDS) -> dict[str, list[Record]]:
    """Return the records of each model, in the order of MODELS."""
    paths = {model: folder / f"{model}{SUFFIX}" for model in MODELS}
    return {model: read_lines(path)[1] for model, path in paths.items() if path.is_file()}


def read_floor() -> Record:
    """Return the kept spread of lengths among writers, by family."""
    return json.loads(FLOOR.read_text())["families"]


def bias(records: Sequence[Record], name: str) -> float:
    """Return the difference between the mean prediction and the true mean length, as a share of the latter."""
    truth = statistics.mean(record["true_mean" if "true_mean" in record else "length"] for record in records)
    return statistics.mean(record["mean"][name] for record in records) / truth - 1


def error(records: Sequence[Record], name: str) -> float:
    """Return the mean absolute error of the predicted mean, in slots."""
    return statistics.mean(abs(record["mean"][name] - record["length"]) for record in records)


def median_error(records: Sequence[Record], name: str) -> float:
    """Return the mean absolute error of the predicted median, in slots."""
    return statistics.mean(abs(record["quantile"][name][0] - record["length"]) for record in records)


def without_known_hazard(records: Sequence[Record]) -> list[Record]:
    """Return the records without the known-hazard task, whose lengths are drawn at random."""
    return [record for record in records if record["family"] != "known_hazard"]


def overall(models: dict[str, list[Record]], floors: Record) -> str:
    """Return Markdown with the main interpretations on every model, over the five benchmark families."""
    lines = [
        "| model | interpretation | bias | mean abs. error | relative to hazard | within the 90% quantile |",
        "|---|---|---:|---:|---:|---:|",
    ]
    floor = statistics.mean(floors[family]["deviation"] for family in BENCHMARKS)
    for model, records in models.items():
        answers = without_known_hazard(records)
        for name in ON_PAGE:
            within = statistics.mean(record["length"] <= record["quantile"][name][1] for record in answers)
            lines.append(
                f"| {model} | {name} | {bias(answers, name):+.1%} | {error(answers, name):.1f} "
                f"| {error(answers, name) / error(answers, PRODUCT):.2f} | {within:.1%} |"
            )
        lines.append(f"| {model} | *spread among writers* | | {floor:.1f} | {floor / error(answers, PRODUCT):.2f} | |")
    return "\n".join(lines)


def details(models: dict[str, list[Record]]) -> str:
    """Return Markdown with more columns for every interpretation on every model."""
    lines = [
        "| model | interpretation | mean length | bias | mean abs. error | error of the median "
        "| answers longer than the mean | within the 90% quantile |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for model, records in models.items():
        answers = without_known_hazard(records)
        for name in INTERPRETATIONS:
            within = statistics.mean(record["length"] <= record["quantile"][name][1] for record in answers)
            longer = statistics.mean(record["length"] > math.ceil(record["mean"][name]) for record in answers)
            lines.append(
                f"| {model} | {name} | {statistics.mean(record['mean'][name] for record in answers):.1f} "
                f"| {bias(answers, name):+.1%} | {error(answers, name):.1f} | {median_error(answers, name):.1f} "
                f"| {longer:.1%} | {within:.1%} |"
            )
    return "\n".join(lines)


def by_family(models: dict[str, list[Record]], floors: Record) -> str:
    """Return Markdown with bias and error per family, for the product and for Auto."""
    lines = [f"| model | interpretation | {' | '.join(FAMILIES)} |", f"|---|---|{'---:|' * len(FAMILIES)}"]
    for model, records in models.items():
        for name in (PRODUCT, "auto"):
            cells = [
                f"{bias(answers, name):+.1%}, {error(answers, name):.1f}"
                for family in FAMILIES
                for answers in [[record for record in records if record["family"] == family]]
            ]
            lines.append(f"| {model} | {name} | {' | '.join(cells)} |")
    known = [record for record in next(iter(models.values())) if record["family"] == "known_hazard"]
    cells = [f"{floors[family]['deviation']:.1f}" for family in BENCHMARKS]
    cells.append(f"{statistics.mean(record['floor'] for record in known):.1f}")
    lines.append(f"| | *spread among writers* | {' | '.join(cells)} |")
    return "\n".join(lines)


def on_known_hazard(models: dict[str, list[Record]]) -> str:
    """Return Markdown that compares predicted distributions with those that known-hazard prompts name."""
    lines = [f"| model | {' | '.join(ON_PAGE)} |", f"|---|{'---:|' * len(ON_PAGE)}"]
    for model, records in models.items():
        known = [record for record in records if record["family"] == "known_hazard"]
        cells = [
            f"{bias(known, name):+.1%}, {statistics.mean(record['distance'][name] for record in known):.1f}"
            for name in ON_PAGE
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def choices_of_auto(models: dict[str, list[Record]]) -> str:
    """Return Markdown with the number of prompts for which Auto chose each interpretation, on all six families."""
    names = [type(interpretation).__name__ for name, interpretation in INTERPRETATIONS.items() if name != "auto"]
    lines = [f"| model | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for model, records in models.items():
        counts = [sum(record["picked"] == name for record in records) for name in names]
        lines.append(f"| {model} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


# The tables of docs/measured/interpretations.md by name.
TABLES: dict[str, Callable[[dict[str, list[Record]], Record], str]] = {
    "interpretations": overall,
    "interpretations-known": lambda models, _: on_known_hazard(models),
}


def tables(folder: Path = RECORDS) -> dict[str, str]:
    """Return the tables of the page, made from records."""
    models, floors = all_records(folder), read_floor()
    return {name: make(models, floors) for name, make in TABLES.items()}


def all_tables(folder: Path = RECORDS) -> list[str]:
    """Return the tables of the page and the more detailed ones."""
    models, floors = all_records(folder), read_floor()
    return [*tables(folder).values(), details(models), by_family(models, floors), choices_of_auto(models)]


def main() -> None:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="probe and write records")
    runs.add_argument("model", nargs="+")
    runs.add_argument("--per-family", type=int, default=200)
    runs.add_argument("--batch-size", type=int, default=8, help="prompts probed at the same time")
    runs.add_argument("--out", type=Path, default=RECORDS)
    floors = commands.add_parser("floor", help="measure the spread of lengths among writers of answers to one prompt")
    floors.add_argument("--questions", type=int, default=240)
    floors.add_argument("--writers", type=int, default=200)
    floors.add_argument("--out", type=Path, default=FLOOR)
    commands.add_parser("table", help="print all tables of the records")
    options = parser.parse_args()
    if options.command == "run":
        for model in options.model:
            print(run(model, options.per_family, options.batch_size, options.out), flush=True)
    elif options.command == "floor":
        print(measure_floor(options.questions, options.writers, options.out))
    else:
        print(*all_tables(), sep="\n\n")


if __name__ == "__main__":
    main()
