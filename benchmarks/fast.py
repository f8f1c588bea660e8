"""The fast recipe: the candidates of decision 21 on validation prompts, the choice, and its confirmation.

    python -m benchmarks.fast run --workers 12   measure, choose by the rule, confirm (a GPU, minutes)
    python -m benchmarks.fast table              print all tables of the records and the result of the rule

A run generates the prompts of the confirmation first, which requires reasoning-gym (`lastword[training]`). It
measures the candidates, applies the rule, measures the confirmation, and writes a file of records per model and
split. An interrupted run resumes. If the records of validation prompts exist, only the confirmation is measured.
Use a separate folder for a trial with fewer prompts: `--per-family 3 --records out/trial`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import study
from benchmarks.arms import DEFAULT, FAST, FRESH, GROUPS, MODELS, current_name, recipe_of, tagged
from benchmarks.json_lines import SUFFIX, read_lines, write_lines
from benchmarks.study import FRESH_PROMPTS, Job
from lastword.engines.base import environment
from lastword.evaluate.records import Answer
from lastword.evaluate.tables import paired_p
from lastword.tasks import BENCHMARKS

RECORDS = Path(__file__).parent / "records" / "fast"
RAW = Path("out/fast")
FIXED, CAREFUL = "fixed 256", DEFAULT

# The rule of decision 21, which was written before the study.
MAX_LOSS = 0.5  # points below one token per forward pass, over all models
MAX_LOSS_PER_MODEL = 1.0
PASS_MS, TOKEN_MS = 4.2, 0.025  # of LLaDA-8B on an H200
SIGNIFICANT = 0.05
MAX_TIME = 0.5  # relative to one token per forward pass


class ArmResult(NamedTuple):
    """Scores and costs of an arm on the prompts of a model, by family and index, the probe included."""

    correct: NDArray[np.int64]
    forward_passes: NDArray[np.int64]
    tokens_computed: int  # of all prompts

    @property
    def accuracy(self) -> float:
        """The accuracy in percent."""
        return 100 * float(self.correct.mean())

    @property
    def milliseconds(self) -> float:
        """Estimated milliseconds per prompt of an 8B model at batch size 1."""
        total = PASS_MS * int(self.forward_passes.sum()) + TOKEN_MS * self.tokens_computed
        return total / len(self.forward_passes)


Arms = dict[str, ArmResult]  # by name
Results = Mapping[str, Arms]  # by model


class JobResult(NamedTuple):
    """The result of a job of a worker."""

    job: Job
    head: dict[str, Any]  # the first line of the file of records
    result: ArmResult


def measure_job(job: Job, batch_size: int, device: str, out: Path, exclusive: bool) -> JobResult:
    """Measure an arm on a model."""
    bench = study.process_bench(device, exclusive)
    records = [record for record in study.measure(bench, job, batch_size, out) if isinstance(record, Answer)]
    records.sort(key=lambda record: (BENCHMARKS.index(record.task), record.index))
    head: dict[str, Any] = {"model": job.model, "weights": records[0].weights, "dtype": records[0].dtype}
    head |= {"split": job.split, "per_family": job.per_family} | environment(bench.model)
    result = ArmResult(
        np.array([int(record.correct) for record in records]),
        np.array([record.forward_passes for record in records]),
        sum(record.tokens_computed for record in records),
    )
    return JobResult(job, head, result)


def run(batch_size: int, device: str, workers: int, per_family: int | None, folder: Path) -> None:
    """Run the study and its confirmation and write their records; skip the study if its records exist."""
    for family in BENCHMARKS:
        study.fresh(family)  # fails early if the generator of the fresh prompts is not installed

    def measure(arms: Sequence[str], split: str, count: int) -> None:
        wanted = [Job(model, arm, split, per_family or count) for arm in arms for model in MODELS]
        results = []
        for result in study.run_jobs(measure_job, wanted, batch_size, device, workers, RAW):
            job = result.job
            print(f"{job.model} | {job.split} | {job.arm} | {result.result.accuracy:.1f}", flush=True)
            results.append(result)
        keep(results, folder)

    if len(read("validation", folder)) < len(MODELS):
        measure(GROUPS["fast"].arms, "validation", GROUPS["fast"].per_family)
    arm = chosen(read("validation", folder))
    print(f"chosen: {arm}", flush=True)
    measure(tuple(dict.fromkeys((FIXED, CAREFUL, arm))), FRESH, FRESH_PROMPTS)


def keep(results: Sequence[JobResult], folder: Path) -> None:
    """Write a file per model and split, with a line per arm."""
    for model in MODELS:
        of_model = sorted((item for item in results if item.job.model == model), key=lambda item: item.job.arm)
        if not of_model:
            continue
        arms = [
            {
                "arm": item.job.arm,
                "recipe": json.loads(recipe_of(item.job.arm).to_json()),
                "tokens_computed": item.result.tokens_computed,
                "correct": "".join(map(str, item.result.correct.tolist())),
                "forward_passes": item.result.forward_passes.tolist(),
            }
            for item in of_model
        ]
        write_lines(_path(model, of_model[0].job.split, folder), of_model[0].head, arms)


def read(split: str, folder: Path = RECORDS) -> dict[str, Arms]:
    """Return the arms of a split by model. All arms answered the same prompts."""
    results = {}
    for model in MODELS:
        path = _path(model, split, folder)
        if path.exists():
            results[model] = {current_name(line["arm"]): _arm_result(line) for line in read_lines(path)[1]}
    return results


def _arm_result(line: dict[str, Any]) -> ArmResult:
    """Return the result in a line of records; older records have the second names."""
    names = (("correct", "right"), ("forward_passes", "passes"), ("tokens_computed", "columns"))
    correct, forward_passes, tokens = (line[new] if new in line else line[old] for new, old in names)
    return ArmResult(np.array([*map(int, correct)]), np.array(forward_passes), tokens)


def _path(model: str, split: str, folder: Path) -> Path:
    return folder / f"{model}.{split.replace(' ', '-')}{SUFFIX}"


def differences(results: Results, arm: str, base: str) -> list[float]:
    """Return the difference in accuracy from another arm, in points per model."""
    return [arms[arm].accuracy - arms[base].accuracy for arms in results.values()]


def milliseconds(results: Results, arm: str) -> float:
    """Return the estimated milliseconds per prompt, over all models."""
    return sum(arms[arm].milliseconds for arms in results.values()) / len(results)


def allowed(results: Results, arm: str) -> bool:
    """Return whether the rule allows an arm."""
    compared = differences(results, arm, CAREFUL)
    return (
        _at_least(sum(compared) / len(compared), -MAX_LOSS)
        and _at_least(min(compared), -MAX_LOSS_PER_MODEL)
        and _at_least(min(differences(results, arm, FIXED)), 0)
    )


def _at_least(value: float, bound: float) -> bool:
    return value >= bound - 1e-9  # shares of prompts are not exact binary numbers


def chosen(results: Results) -> str:
    """Return the cheapest arm that the rule allows, or one token per forward pass if it allows none."""
    candidates = [arm for arm in tagged(FAST) if allowed(results, arm)]
    return min(candidates, key=lambda arm: milliseconds(results, arm), default=CAREFUL)


def confirmed(results: Results, arm: str) -> dict[str, bool]:
    """Return the conditions of the confirmation and whether each holds."""
    lost = -sum(differences(results, arm, CAREFUL)) / len(results)
    return {
        "no significant loss compared with the fixed canvas on any model": all(
            gained >= 0 or _p([arms], FIXED, arm) >= SIGNIFICANT
            for arms, gained in zip(results.values(), differences(results, arm, FIXED))
        ),
        f"at most {MAX_LOSS} points below one token per forward pass, or no significant loss": (
            _at_least(-lost, -MAX_LOSS) or _p(list(results.values()), CAREFUL, arm) >= SIGNIFICANT
        ),
        f"at most {MAX_TIME} of its estimated time": (
            milliseconds(results, arm) <= MAX_TIME * milliseconds(results, CAREFUL)
        ),
    }


def _p(models: Sequence[Arms], base: str, arm: str) -> float:
    """Return p of an exact paired test over the prompts of these models."""
    before, after = ([bool(correct) for arms in models for correct in arms[name].correct] for name in (base, arm))
    return paired_p(before, after)


def page_candidates() -> str:
    """Return the table of docs/measured/fast-recipe.md: the candidates that are fast or accurate for their time."""
    results = read("validation")
    arms = by_time(results)
    best, rows = -100.0, list[str]()
    for arm in arms:
        loss = _mean(differences(results, arm, CAREFUL))
        if loss > best or allowed(results, arm) or arm == FIXED:
            rows.append(arm)
        best = max(best, loss)
    lines = [
        "| recipe | difference | worst model | forward passes | tokens computed | ms | rule |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for arm in rows:
        compared = differences(results, arm, CAREFUL)
        cells = [f"{_mean(compared):+.2f}", f"{min(compared):+.1f}", *_work(results, arm), _verdict(results, arm)]
        lines.append(f"| {_title(arm)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _title(arm: str) -> str:
    """Return the name of an arm without the length, which all arms except the fixed canvas share."""
    return "one token per forward pass (`careful`)" if arm == CAREFUL else arm.removeprefix(f"{DEFAULT} + ")


def candidates(results: Results) -> str:
    """Return every candidate by estimated time: accuracy, in brackets points compared with one token per pass."""
    lines = [_head(results, "all", "forward passes", "tokens computed", "ms", "rule")]
    for arm in by_time(results):
        compared = differences(results, arm, CAREFUL)
        cells = [f"{arms[arm].accuracy:.1f} ({gained:+.1f})" for arms, gained in zip(results.values(), compared)]
        cells += [f"{_mean(compared):+.2f}", *_work(results, arm), _verdict(results, arm)]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_time(results: Results) -> list[str]:
    """Return the arms by estimated time."""
    return sorted(next(iter(results.values())), key=lambda arm: milliseconds(results, arm))


def _verdict(results: Results, arm: str) -> str:
    return "chosen" if arm == chosen(results) else "allowed" if allowed(results, arm) else "not allowed"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def confirmation(results: Results, arm: str) -> str:
    """Return the chosen recipe and the two others: accuracy, in brackets points compared with the fixed canvas."""
    lines = [_head(results, "compared with `careful`", "forward passes", "tokens computed", "ms")]
    for name in dict.fromkeys((FIXED, CAREFUL, arm)):
        gained = differences(results, name, FIXED)
        cells = [
            f"{arms[name].accuracy:.1f} ({more:+.1f}, p {_p([arms], FIXED, name):.1g})"
            for arms, more in zip(results.values(), gained)
        ]
        mean = _mean(differences(results, name, CAREFUL))
        cells.append(f"{mean:+.2f}, p {_p(list(results.values()), CAREFUL, name):.1g}")
        lines.append(f"| {_title(name)} | {' | '.join([*cells, *_work(results, name)])} |")
    return "\n".join(lines)


def page_confirmation() -> str:
    """Return the confirmation of the arm that the kept records choose."""
    return confirmation(read(FRESH), chosen(read("validation")))


def _head(results: Results, *more: str) -> str:
    cells = ["recipe", *results, *more]
    return f"| {' | '.join(cells)} |\n|---|{'---:|' * (len(cells) - 1)}"


def _work(results: Results, arm: str) -> list[str]:
    """Return forward passes and tokens computed as shares of the fixed canvas, and estimated milliseconds."""
    of_arm, of_fixed = ([arms[name] for arms in results.values()] for name in (arm, FIXED))
    passes = sum(result.forward_passes.sum() for result in of_arm) / sum(r.forward_passes.sum() for r in of_fixed)
    tokens = sum(result.tokens_computed for result in of_arm) / sum(result.tokens_computed for result in of_fixed)
    return [f"{passes:.3f}", f"{tokens:.3f}", f"{milliseconds(results, arm):.0f}"]


def report(folder: Path) -> str:
    """Return all tables of the records: candidates, choice and confirmation."""
    validation, fresh = read("validation", folder), read(FRESH, folder)
    arm = chosen(validation)
    parts = [candidates(validation), f"chosen: {arm} ({recipe_of(arm).label()})"]
    if fresh:
        conditions = confirmed(fresh, arm)
        parts += [
            confirmation(fresh, arm),
            "\n".join(f"{'holds' if holds else 'fails'}: {condition}" for condition, holds in conditions.items()),
            f"the default is {arm if all(conditions.values()) else CAREFUL}",
        ]
    return "\n\n".join(parts)


def main() -> None:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure, choose and confirm")
    runs.add_argument("--batch-size", type=int, default=500, help="prompts decoded at the same time")
    runs.add_argument("--workers", type=int, default=1)
    runs.add_argument("--device", default="auto")
    runs.add_argument("--per-family", type=int, help="fewer prompts for a trial; use it with --records")
    tables = commands.add_parser("table", help="print all tables of the records")
    for command in (runs, tables):
        command.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args()
    if options.command == "run":
        run(options.batch_size, options.device, options.workers, options.per_family, options.records)
    print(report(options.records))


if __name__ == "__main__":
    main()
