"""Is a row of a batch what it is alone? `python -m benchmarks.batch_is_solo --minutes 10`.

Draws recipes over all parts that compose, prompts of every task family and batches of them, on the
embedded models, and compares each row token for token and cost for cost with its solo run. Each
difference is printed as one line of JSON; `--again LINE` runs that batch once more. Exits with 1 if
there was one.
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
MOST_SLOTS = 40
MOST_ROWS = 5
COMPARED = ("canvas", "tokens", "horizon", "probe_cost", "cost", "finish")


@dataclass(frozen=True)
class Trial:
    """A batch, and all that is needed to run it again."""

    model: str
    recipe: str  # JSON
    prompts: list[str]
    seeds: list[int]

    @classmethod
    def draw(cls, rng: random.Random, model: str) -> Trial:
        rows = rng.randint(2, MOST_ROWS)
        prompts = [rng.choice(examples(rng.choice(BENCHMARKS))) for _ in range(rows)]
        seeds = [rng.randrange(10**6) for _ in range(rows)]
        return cls(model, recipe(rng).to_json(), prompts, seeds)

    def differences(self) -> list[dict[str, Any]] | None:
        """Every row that is not what it is alone, with what differs; None if it is refused either way."""
        together, refused = self._answers(self.prompts, self.seeds)
        alone = [self._answers([p], [s]) for p, s in zip(self.prompts, self.seeds, strict=True)]
        if refused:
            return None if any(why for _, why in alone) else [{"row": None, "batch": refused}]
        results: list[dict[str, Any]] = []
        for row, (batch, (solo, why)) in enumerate(zip(together, alone, strict=True)):
            if why:
                results.append({"row": row, "solo": why})
                continue
            other = [name for name in COMPARED if getattr(batch, name) != getattr(solo[0], name)]
            if other:
                pair = {name: str((getattr(batch, name), getattr(solo[0], name))) for name in other}
                results.append({"row": row, **pair})
        return results

    def _answers(self, prompts: list[str], seeds: list[int]) -> tuple[list[Any], str | None]:
        """The answers, or why there are none."""
        chosen = lastword.Recipe.from_json(self.recipe)
        try:
            return lastword.generate(model(self.model), prompts, recipe=chosen, seed=seeds), None
        except LastwordError as error:
            return [], f"{type(error).__name__}: {error}"


@cache
def model(name: str) -> Any:
    """An embedded model, loaded once."""
    return lastword.load(name, device="cpu")


@cache
def examples(family: str) -> list[str]:
    """The held-out prompts of a task family."""
    return [example.prompt for example in load_frozen("validation", family)]


def recipe(rng: random.Random) -> lastword.Recipe:
    """Any recipe: parts that do not compose are drawn again."""
    while True:
        try:
            return lastword.Recipe(
                length=length(rng),
                unmask=unmask(rng),
                commit=commit(rng),
                cache=kept(rng),
                block=rng.choice([None, 1, 4, 8, 32, rng.randint(2, MOST_SLOTS)]),
                sampling=sampling(rng),
            )
        except SettingError:
            continue


def length(rng: random.Random) -> lastword.LengthPolicy:
    """Any length policy but Calibrated, which takes the one recipe that it was calibrated for."""
    slots = rng.randint(3, MOST_SLOTS - 8)
    limit = slots + rng.randint(1, 8)
    survival = lastword.Survival(slots, interpretation=rng.choice([lastword.Hazard(), lastword.Auto()]))
    plain: lastword.LengthPolicy = rng.choice([survival, lastword.Fixed(slots)])
    of: list[Callable[[], lastword.LengthPolicy]] = [
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
    return rng.choice(of)()


def schedule(rng: random.Random) -> lastword.Schedule:
    """Any schedule."""
    pace = rng.choice([1.0, 2.0, rng.uniform(0.6, 6.0)])
    of: list[Callable[[], lastword.Schedule]] = [
        lambda: lastword.EqualShares(max(pace, 1.0)),
        lambda: lastword.Timesteps(pace, keep_idle=rng.random() < 0.3),
        lambda: lastword.Cosine(max(pace, 1.0)),
    ]
    return rng.choice(of)()


def unmask(rng: random.Random) -> lastword.UnmaskRule:
    """Any unmask rule."""
    times, bar = schedule(rng), rng.uniform(0.2, 0.95)
    ranked: list[Any] = [lastword.MostConfident, lastword.LargestMargin, lastword.LowestEntropy]
    of: list[Callable[[], lastword.UnmaskRule]] = [
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
        lambda: rng.choice([*PARTS["unmask"].values()])(),  # one that is new here
    ]
    return rng.choice(of)()


def commit(rng: random.Random) -> lastword.CommitRule:
    """Any commit rule, none as often as the others together."""
    late = rng.uniform(0.3, 4.0)
    measure = rng.choice(["gap", "margin"])
    of: list[Callable[[], lastword.CommitRule]] = [
        lastword.Never,
        lastword.Never,
        lastword.Never,
        lambda: lastword.Prophet(measure, late + 4, late + 1, late),
        lambda: lastword.Prophet(measure, late + 4, late + 1, late, answer_start=2, literals=((1, 17), (-1, 18))),
        lambda: lastword.StableMargin(measure, start_threshold=late + 4, end_threshold=late),
        lambda: rng.choice([*PARTS["commit"].values()])(),
    ]
    return rng.choice(of)()


def kept(rng: random.Random) -> lastword.Cache:
    """Any cache."""
    of: list[Callable[[], lastword.Cache]] = [
        lastword.NoCache,
        lambda: lastword.PrefixCache(rng.randint(0, 3)),
        lambda: lastword.DualCache(rng.randint(0, 3)),
        lambda: lastword.FeatureCache(rng.randint(1, 25), rng.randint(1, 8), rng.random()),
        lambda: lastword.FeatureCache(rng.randint(1, 25), rng.randint(1, 8), 0.0),
        lambda: rng.choice([*PARTS["cache"].values()])(),
    ]
    return rng.choice(of)()


def sampling(rng: random.Random) -> lastword.Sampling:
    """The likeliest token half of the time, else any sampling."""
    if rng.random() < 0.5:
        return lastword.Sampling()
    temperature = rng.choice([0.0, 0.5, 1.0])
    score: Literal["model", "draw"] = "model" if rng.random() < 0.5 else "draw"
    filtered = temperature > 0 or score == "draw"  # else there is nothing to filter
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
    """Without end, the models in turn."""
    rng = random.Random(seed)
    while True:
        for name in MODELS:
            yield Trial.draw(rng, name)


def run(minutes: float, seed: int) -> tuple[int, int]:
    """Rows compared, and how many of them differed; a first batch in any case."""
    until, rows, wrong = time.monotonic() + 60 * minutes, 0, 0
    for trial in trials(seed):
        compared, results = report(trial)
        rows, wrong = rows + compared, wrong + results
        if rows and time.monotonic() >= until:
            break
    return rows, wrong


def report(trial: Trial) -> tuple[int, int]:
    """Print how a trial's rows differ, after the line that repeats it; rows compared, rows that do."""
    results = trial.differences()
    if results is None:
        return 0, 0
    if results:
        print(json.dumps(asdict(trial)))
        for difference in results:
            print("  differs:", json.dumps(difference))
        sys.stdout.flush()
    return len(trial.prompts), len(results)


def run_beside(minutes: float, seed: int, workers: int) -> tuple[int, int]:
    """Return the sum of the counts of several processes, each with another seed."""
    if workers == 1:
        return run(minutes, seed)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        seeds = [seed * workers + worker for worker in range(workers)]
        counts = list(pool.map(run, [minutes] * workers, seeds))
    return sum(rows for rows, _ in counts), sum(wrong for _, wrong in counts)


def main() -> None:
    """Compare for some minutes, or one batch again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the recipes, prompts and batches")
    parser.add_argument("--workers", type=int, default=1, help="processes, one a core at most")
    parser.add_argument("--again", help="a line this command printed: run that batch once more")
    given = parser.parse_args()
    torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it brings
    if given.again:
        rows, wrong = report(Trial(**json.loads(given.again)))
    else:
        rows, wrong = run_beside(given.minutes, given.seed, given.workers)
    print(f"{rows} rows compared with their solo runs, {wrong} differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
