"""A fast default: the candidates of decision 21 on validation prompts, the choice, and its confirmation.

    python -m benchmarks.fast run --workers 12   measure, choose by the rule, confirm (a GPU, minutes)
    python -m benchmarks.fast table              what the records say, and what the rule makes of them

A run makes the prompts of the confirmation first, for which it needs reasoning-gym (`lastword[training]`). It
goes from the choice to the confirmation by itself and writes a file of records for each model and split; one
that is killed resumes, and where the records of validation prompts are kept, only the confirmation is asked.
A trial with fewer prompts needs a folder of its own: `--per-family 3 --records out/trial`.
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
from benchmarks.arms import DEFAULT, FAST, FRESH, GROUPS, MODELS, recipe_of, tagged
from benchmarks.json_lines import SUFFIX, read_lines, write_lines
from benchmarks.study import FRESH_PROMPTS, Job
from lastword.engines.base import environment
from lastword.evaluate.records import Answer
from lastword.evaluate.tables import paired_p
from lastword.tasks import BENCHMARKS

RECORDS = Path(__file__).parent / "records" / "fast"
RAW = Path("out/fast")
FIXED, CAREFUL = "fixed 256", DEFAULT

# Decision 21, as it was written down before the first prompt was asked.
MOST_LOST = 0.5  # points against one token a pass, over all models
MOST_LOST_BY_ONE = 1.0  # by one of them
PASS_MS, COLUMN_MS = 4.2, 0.025  # of LLaDA-8B on an H200
SIGNIFICANT = 0.05
MOST_TIME = 0.5  # of one token a pass


class Counted(NamedTuple):
    """Scores and costs of an arm on the prompts of a model, by family and index, the probe included."""

    right: NDArray[np.int64]
    passes: NDArray[np.int64]
    columns: int  # of all prompts

    @property
    def points(self) -> float:
        return 100 * float(self.right.mean())

    @property
    def milliseconds(self) -> float:
        """Estimated milliseconds per prompt of an 8B model at batch size 1."""
        spent = PASS_MS * int(self.passes.sum()) + COLUMN_MS * self.columns
        return spent / len(self.passes)


Arms = dict[str, Counted]  # by name
Found = Mapping[str, Arms]  # by model


class Result(NamedTuple):
    """The result of a worker."""

    job: Job
    about: dict[str, Any]
    counted: Counted


def measured(job: Job, rows: int, device: str, out: Path, alone: bool) -> Result:
    """Measure an arm on a model."""
    bench = study.bench(device, alone)
    records = [r for r in study.measure(bench, job, rows, out) if isinstance(r, Answer)]
    records.sort(key=lambda record: (BENCHMARKS.index(record.task), record.index))
    passes = [record.forward_passes for record in records]
    columns = sum(record.tokens_computed for record in records)
    about: dict[str, Any] = {"model": job.model, "weights": records[0].weights, "dtype": records[0].dtype}
    about |= {"split": job.split, "per_family": job.per_family} | environment(bench.model)
    right = [int(r.correct) for r in records]
    return Result(job, about, Counted(np.array(right), np.array(passes), columns))


def run(rows: int, device: str, workers: int, per_family: int | None, folder: Path) -> None:
    """Both halves of the study, and their records; the first is left out where its records are kept."""
    for family in BENCHMARKS:
        study.fresh(family)  # without its generator the second half cannot be asked: fail now

    def ask(arms: Sequence[str], split: str, count: int) -> None:
        wanted = [Job(model, arm, split, per_family or count) for arm in arms for model in MODELS]
        results = []
        for result in study.each(measured, wanted, rows, device, workers, RAW):
            job, counted = result.job, result.counted
            print(f"{job.model} | {job.split} | {job.arm} | {counted.points:.1f}", flush=True)
            results.append(result)
        keep(results, folder)

    if len(read("validation", folder)) < len(MODELS):
        ask(GROUPS["fast"].arms, "validation", GROUPS["fast"].per_family)
    arm = chosen(read("validation", folder))
    print(f"chosen: {arm}", flush=True)
    ask(tuple(dict.fromkeys((FIXED, CAREFUL, arm))), FRESH, FRESH_PROMPTS)


def keep(results: Sequence[Result], folder: Path) -> None:
    """Write a file per model and split, with a line per arm."""
    for model in MODELS:
        own = sorted((result for result in results if result.job.model == model), key=lambda one: one.job.arm)
        if not own:
            continue
        arms = [
            {
                "arm": result.job.arm,
                "recipe": json.loads(recipe_of(result.job.arm).to_json()),
                "columns": result.counted.columns,
                "right": "".join(map(str, result.counted.right.tolist())),
                "passes": result.counted.passes.tolist(),
            }
            for result in own
        ]
        write_lines(_path(model, own[0].job.split, folder), own[0].about, arms)


def read(split: str, folder: Path = RECORDS) -> dict[str, Arms]:
    """Return the arms of a split by model. All arms answered the same prompts."""
    results = {}
    for model in MODELS:
        path = _path(model, split, folder)
        if path.exists():
            results[model] = {
                line["arm"]: Counted(np.array([*map(int, line["right"])]), np.array(line["passes"]), line["columns"])
                for line in read_lines(path)[1]
            }
    return results


def _path(model: str, split: str, folder: Path) -> Path:
    return folder / f"{model}.{split.replace(' ', '-')}{SUFFIX}"


def points(results: Found, arm: str, base: str) -> list[float]:
    """Return the points that an arm scores above another, per model."""
    return [arms[arm].points - arms[base].points for arms in results.values()]


def milliseconds(results: Found, arm: str) -> float:
    """Return the estimated milliseconds per prompt, over all models."""
    return sum(arms[arm].milliseconds for arms in results.values()) / len(results)


def allowed(results: Found, arm: str) -> bool:
    """Return whether the rule admits an arm."""
    against = points(results, arm, CAREFUL)
    return (
        _least(sum(against) / len(against), -MOST_LOST)
        and _least(min(against), -MOST_LOST_BY_ONE)
        and _least(min(points(results, arm, FIXED)), 0)
    )


def _least(value: float, bound: float) -> bool:
    return value >= bound - 1e-9  # shares of prompts are no exact binary numbers


def chosen(results: Found) -> str:
    """The cheapest that the rule allows; one token a pass if it allows none."""
    competing = [arm for arm in tagged(FAST) if allowed(results, arm)]
    return min(competing, key=lambda arm: milliseconds(results, arm), default=CAREFUL)


def confirmed(results: Found, arm: str) -> dict[str, bool]:
    """Return the conditions of the confirmation and whether each holds."""
    lost = -sum(points(results, arm, CAREFUL)) / len(results)
    return {
        "no significant loss against the fixed canvas on any model": all(
            gained >= 0 or _p([arms], FIXED, arm) >= SIGNIFICANT
            for arms, gained in zip(results.values(), points(results, arm, FIXED))
        ),
        f"at most {MOST_LOST} points below one token a pass, or no significant loss": (
            _least(-lost, -MOST_LOST) or _p(list(results.values()), CAREFUL, arm) >= SIGNIFICANT
        ),
        f"at most {MOST_TIME} of its estimated time": (
            milliseconds(results, arm) <= MOST_TIME * milliseconds(results, CAREFUL)
        ),
    }


def _p(models: Sequence[Arms], base: str, arm: str) -> float:
    """Return p of an exact paired test over the prompts of these models."""
    before, after = ([bool(right) for arms in models for right in arms[one].right] for one in (base, arm))
    return paired_p(before, after)


def candidates(results: Found) -> str:
    """Every candidate, cheapest first: accuracy, in brackets points against one token a pass."""
    winner = chosen(results)
    arms = sorted(next(iter(results.values())), key=lambda arm: milliseconds(results, arm))
    lines = [_head(results, "all", "passes", "columns", "ms", "by the rule")]
    for arm in arms:
        against = points(results, arm, CAREFUL)
        cells = [f"{arms[arm].points:.1f} ({gained:+.1f})" for arms, gained in zip(results.values(), against)]
        word = "chosen" if arm == winner else "allowed" if allowed(results, arm) else "out"
        cells += [f"{sum(against) / len(against):+.2f}", *_work(results, arm), word]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def confirmation(results: Found, arm: str) -> str:
    """Return the chosen recipe compared with the others: accuracy, in brackets points against the fixed canvas."""
    lines = [_head(results, "all, against one token a pass", "passes", "columns", "ms")]
    for one in dict.fromkeys((FIXED, CAREFUL, arm)):
        gained = points(results, one, FIXED)
        cells = [
            f"{arms[one].points:.1f} ({more:+.1f}, p {_p([arms], FIXED, one):.1g})"
            for arms, more in zip(results.values(), gained)
        ]
        against = sum(points(results, one, CAREFUL)) / len(results)
        cells.append(f"{against:+.2f}, p {_p(list(results.values()), CAREFUL, one):.1g}")
        lines.append(f"| {one} | {' | '.join([*cells, *_work(results, one)])} |")
    return "\n".join(lines)


def confirmation_kept() -> str:
    """The confirmation of what the kept records choose."""
    return confirmation(read(FRESH), chosen(read("validation")))


def _head(results: Found, *more: str) -> str:
    cells = ["recipe", *results, *more]
    return f"| {' | '.join(cells)} |\n|---|{'---:|' * (len(cells) - 1)}"


def _work(results: Found, arm: str) -> list[str]:
    """Passes and columns as shares of the fixed canvas's, and estimated milliseconds."""
    own, base = ([arms[one] for arms in results.values()] for one in (arm, FIXED))
    passes = sum(c.passes.sum() for c in own) / sum(c.passes.sum() for c in base)
    columns = sum(c.columns for c in own) / sum(c.columns for c in base)
    return [f"{passes:.3f}", f"{columns:.3f}", f"{milliseconds(results, arm):.0f}"]


def report(folder: Path) -> str:
    """The candidates and the choice, the confirmation and what follows."""
    validation, fresh = read("validation", folder), read(FRESH, folder)
    arm = chosen(validation)
    said = [candidates(validation), f"chosen: {arm} ({recipe_of(arm).label()})"]
    if fresh:
        held = confirmed(fresh, arm)
        said += [
            confirmation(fresh, arm),
            "\n".join(f"{'holds' if good else 'fails'}: {what}" for what, good in held.items()),
            f"the default is {arm if all(held.values()) else CAREFUL}",
        ]
    return "\n\n".join(said)


def main() -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure, choose and confirm")
    runs.add_argument("--rows", type=int, default=500, help="prompts decoded at once")
    runs.add_argument("--workers", type=int, default=1)
    runs.add_argument("--device", default="auto")
    runs.add_argument("--per-family", type=int, help="fewer prompts, to try it, with --records")
    tables = commands.add_parser("table", help="print what the records say")
    for command in (runs, tables):
        command.add_argument("--records", type=Path, default=RECORDS)
    given = parser.parse_args()
    if given.command == "run":
        run(given.rows, given.device, given.workers, given.per_family, given.records)
    print(report(given.records))


if __name__ == "__main__":
    main()
