"""Compare rows of random batches with their solo runs: `python -m benchmarks.batch_is_solo --minutes 10`.

Draws recipes from all parts that can be combined, prompts of every task family and batches of them, on the
embedded models, and compares tokens and costs of each row with its solo run. Each batch with a difference is
printed as one line of JSON; `--again LINE` runs that batch again. The exit status is 1 if there was a difference.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import torch

import lastword
from lastword.errors import LastwordError, SettingError
from lastword.recipe.registry import PARTS
from lastword.tasks import BENCHMARKS, load_frozen

MODELS = ("tiny-llada-base", "tiny-llada-instruct", "tiny-dream-base", "tiny-dream-instruct")
MAX_SLOTS = 40
MAX_ROWS = 5
COMPARED = ("canvas", "tokens", "horizon", "probe_cost", "cost", "finish")


@dataclass(frozen=True)
class Trial:
    """A batch with everything that is needed to run it again."""

    model: str
    recipe: str  # JSON
    prompts: list[str]
    seeds: list[int]

    @classmethod
    def draw(cls, rng: random.Random, model: str) -> Trial:
        rows = rng.randint(2, MAX_ROWS)
        prompts = [rng.choice(examples(rng.choice(BENCHMARKS))) for _ in range(rows)]
        seeds = [rng.randrange(10**6) for _ in range(rows)]
        return cls(model, recipe(rng).to_json(), prompts, seeds)

    def differences(self) -> list[dict[str, Any]] | None:
        """Return the rows that differ from their solo runs; None if the recipe is rejected in both cases."""
        together, error = self._answers(self.prompts, self.seeds)
        alone = [self._answers([p], [s]) for p, s in zip(self.prompts, self.seeds, strict=True)]
        if error:
            return None if any(solo_error for _, solo_error in alone) else [{"row": None, "batch": error}]
        results: list[dict[str, Any]] = []
        for row, (batch, (solo, solo_error)) in enumerate(zip(together, alone, strict=True)):
            if solo_error:
                results.append({"row": row, "solo": solo_error})
                continue
            different = [name for name in COMPARED if getattr(batch, name) != getattr(solo[0], name)]
            if different:
                pairs = {name: str((getattr(batch, name), getattr(solo[0], name))) for name in different}
                results.append({"row": row, **pairs})
        return results

    def _answers(self, prompts: list[str], seeds: list[int]) -> tuple[list[Any], str | None]:
        """Return the answers, or no answers and the error."""
        chosen = lastword.Recipe.from_json(self.recipe)
        try:
            return lastword.generate(model(self.model), prompts, recipe=chosen, seed=seeds), None
        except LastwordError as error:
            return [], f"{type(error).__name__}: {error}"


@cache
def model(name: str) -> Any:
    """Return an embedded model, which is loaded once."""
    return lastword.load(name, device="cpu")


@cache
def examples(family: str) -> list[str]:
    """Return the validation prompts of a task family."""
    return [example.prompt for example in load_frozen("validation", family)]


def recipe(rng: random.Random) -> lastword.Recipe:
    """Draw a recipe; parts that cannot be combined are drawn again."""
    while True:
        try:
            return lastword.Recipe(
                length=length(rng),
                unmask=unmask(rng),
                commit=commit(rng),
                cache=cache_policy(rng),
                block=rng.choice([None, 1, 4, 8, 32, rng.randint(2, MAX_SLOTS)]),
                sampling=sampling(rng),
            )
        except SettingError:
            continue


def length(rng: random.Random) -> lastword.LengthPolicy:
    """Draw a length policy, except Calibrated, which requires the recipe of its calibration."""
    slots = rng.randint(3, MAX_SLOTS - 8)
    limit = slots + rng.randint(1, 8)
    survival = lastword.Survival(slots, interpretation=rng.choice([lastword.Hazard(), lastword.Auto()]))
    plain: lastword.LengthPolicy = rng.choice([survival, lastword.Fixed(slots)])
    choices: list[Callable[[], lastword.LengthPolicy]] = [
        lambda: plain,
        lambda: lastword.SurvivalAtStep(rng.randint(0, 4), survival),
        lambda: lastword.Reread(survival, increment=rng.randint(1, 16)),
        lambda: lastword.Secant(slots, rng.randint(1, slots), tolerance=2, interpretation=lastword.Hazard()),
        lambda: lastword.StopAtEnd(plain),
        lambda: lastword.GrowWhenFull(plain, increment=rng.randint(1, 8), limit=limit),
        lambda: lastword.StopAtEnd(lastword.GrowWhenFull(plain, increment=4, limit=limit)),
        lambda: lastword.Budget(plain, max_passes=rng.randint(8, 60)),
        lambda: lastword.Daedal(
            initial=slots,
            limit=limit,
            expansion_factor=rng.randint(2, 8),
            eos_window=8,
            low_threshold=rng.uniform(0.1, 0.6),
        ),
        lambda: lastword.RhoEos(
            initial=slots,
            limit=limit,
            expansion_factor=rng.randint(1, 4),
            signal=rng.choice(["density", "released"]),
            eos_window=8,
        ),
    ]
    return rng.choice(choices)()


def schedule(rng: random.Random) -> lastword.Schedule:
    """Draw a schedule."""
    tokens = rng.choice([1.0, 2.0, rng.uniform(0.6, 6.0)])
    choices: list[Callable[[], lastword.Schedule]] = [
        lambda: lastword.EqualShares(max(tokens, 1.0)),
        lambda: lastword.Timesteps(tokens, keep_idle=rng.random() < 0.3),
        lambda: lastword.Cosine(max(tokens, 1.0)),
    ]
    return rng.choice(choices)()


def unmask(rng: random.Random) -> lastword.UnmaskRule:
    """Draw an unmask rule."""
    times, bar = schedule(rng), rng.uniform(0.2, 0.95)
    ranked: list[Any] = [lastword.MostConfident, lastword.LargestMargin, lastword.LowestEntropy]
    choices: list[Callable[[], lastword.UnmaskRule]] = [
        lambda: rng.choice(ranked)(times, order_temperature=rng.choice([0.0, 0.0, 0.5])),
        lambda: lastword.AtRandom(times),
        lambda: lastword.CoinFlip(lastword.Timesteps(rng.choice([0.7, 1.0, 2.0, 4.0]))),
        lambda: lastword.MaskGit(times, choice_temperature=rng.choice([0.0, 1.0, 4.5])),
        lambda: lastword.AboveThreshold(bar, max_tokens_per_step=rng.choice([None, 1.5, 4.0])),
        lambda: lastword.Factor(rng.uniform(0.3, 3.0)),
        lambda: lastword.EntropyBound(rng.uniform(0.05, 4.0)),
        lambda: lastword.SlowFast(bar, bar * rng.random(), rng.randint(1, 8), as_released=rng.random() < 0.5),
        lambda: lastword.LeftmostFirst(lastword.AboveThreshold(bar)),
        lambda: lastword.LeftmostFirst(lastword.MostConfident(times)),
        lambda: rng.choice([*PARTS["unmask"].values()])(),  # includes rules that are not listed here
    ]
    return rng.choice(choices)()


def commit(rng: random.Random) -> lastword.CommitRule:
    """Draw a commit rule; `Never` is as frequent as the others together."""
    late = rng.uniform(0.3, 4.0)
    measure = rng.choice(["gap", "margin"])
    choices: list[Callable[[], lastword.CommitRule]] = [
        lastword.Never,
        lastword.Never,
        lastword.Never,
        lambda: lastword.Prophet(measure, late + 4, late + 1, late),
        lambda: lastword.Prophet(measure, late + 4, late + 1, late, answer_start=2, literals=((1, 17), (-1, 18))),
        lambda: lastword.StableMargin(measure, start_threshold=late + 4, end_threshold=late),
        lambda: rng.choice([*PARTS["commit"].values()])(),
    ]
    return rng.choice(choices)()


def cache_policy(rng: random.Random) -> lastword.Cache:
    """Draw a cache."""
    choices: list[Callable[[], lastword.Cache]] = [
        lastword.NoCache,
        lambda: lastword.PrefixCache(rng.randint(0, 3)),
        lambda: lastword.DualCache(rng.randint(0, 3)),
        lambda: lastword.FeatureCache(rng.randint(1, 25), rng.randint(1, 8), rng.random()),
        lambda: lastword.FeatureCache(rng.randint(1, 25), rng.randint(1, 8), 0.0),
        lambda: rng.choice([*PARTS["cache"].values()])(),
    ]
    return rng.choice(choices)()


def sampling(rng: random.Random) -> lastword.Sampling:
    """Draw a sampling; half of the draws are greedy."""
    if rng.random() < 0.5:
        return lastword.Sampling()
    temperature = rng.choice([0.0, 0.5, 1.0])
    score: Literal["model", "draw"] = "model" if rng.random() < 0.5 else "draw"
    filtered = temperature > 0 or score == "draw"  # otherwise filters have no effect
    return lastword.Sampling(
        temperature=temperature,
        top_p=rng.choice([None, 0.9]) if filtered else None,
        top_k=rng.choice([None, 20]) if filtered else None,
        score=score,
        guidance=rng.choice([0.0, 0.0, 0.7]),
        forbid_end=rng.random() < 0.2,
        end_last=rng.random() < 0.2,
    )


def trials(seed: int) -> Iterator[Trial]:
    """Yield trials without end, models in turn."""
    rng = random.Random(seed)
    while True:
        for name in MODELS:
            yield Trial.draw(rng, name)


def run(minutes: float, seed: int) -> tuple[int, int]:
    """Return the numbers of compared and of different rows; at least one batch is compared."""
    until, rows, wrong = time.monotonic() + 60 * minutes, 0, 0
    for trial in trials(seed):
        compared, results = report(trial)
        rows, wrong = rows + compared, wrong + results
        if rows and time.monotonic() >= until:
            break
    return rows, wrong


def report(trial: Trial) -> tuple[int, int]:
    """Print a trial and the differences of its rows; return the numbers of compared and of different rows."""
    results = trial.differences()
    if results is None:
        return 0, 0
    if results:
        print(json.dumps(asdict(trial)))
        for difference in results:
            print("  differs:", json.dumps(difference))
        sys.stdout.flush()
    return len(trial.prompts), len(results)


def run_in_processes(minutes: float, seed: int, workers: int) -> tuple[int, int]:
    """Return the sum of the counts of several processes, each with another seed."""
    if workers == 1:
        return run(minutes, seed)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        seeds = [seed * workers + worker for worker in range(workers)]
        counts = list(pool.map(run, [minutes] * workers, seeds))
    return sum(rows for rows, _ in counts), sum(wrong for _, wrong in counts)


def main() -> None:
    """Parse the arguments and compare random batches, or one batch again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of recipes, prompts and batches")
    parser.add_argument("--workers", type=int, default=1, help="processes, at most one per core")
    parser.add_argument("--again", help="a line that this command printed: run that batch again")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more threads are slower for small tensors
    if options.again:
        rows, wrong = report(Trial(**json.loads(options.again)))
    else:
        rows, wrong = run_in_processes(options.minutes, options.seed, options.workers)
    print(f"{rows} rows compared with their solo runs, {wrong} differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
