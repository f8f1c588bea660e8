"""Train one embedded model: `python -m training.train training/tiny-llada-base.toml`.

Writes to its folder `log.jsonl` and, at every validation, `checkpoint.pt` and the averaged weights
in the authors' format.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from training.check import check
from training.run import Run
from training.settings import read


def train(run: Run, first: int, last: int) -> None:
    """Steps `first` to `last`, a line of log every so often, a checkpoint at each validation."""
    s, tokens, began = run.settings, 0, time.perf_counter()
    lap = began
    for step in range(first, last):
        loss, columns = run.advance(step)
        tokens, done = tokens + columns, step + 1
        due = done % s.validate_every == 0 or done == last
        if not due and done % s.log_every:
            continue
        line = {"step": done, "loss": round(loss.item(), 5)}  # the only wait for the device
        now = time.perf_counter()
        line |= {"tokens_per_second": int(tokens / (now - lap)), "seconds": round(now - began, 1)}
        if due:
            line["validation_loss"] = round(run.validate(), 5)
            run.save(done)
            run.export()  # every checkpoint is a model: a run that is cut off leaves a usable one
        run.log(line)
        tokens, lap = 0, time.perf_counter()


def main() -> None:
    """Parse, make the run, train."""
    parser = argparse.ArgumentParser(description="Train one of the embedded models.")
    parser.add_argument("recipe", type=Path, help="such as training/tiny-llada-base.toml")
    parser.add_argument("--out", type=Path, help="default: out/models/NAME")
    parser.add_argument("--steps", type=int, help="length of the whole schedule")
    parser.add_argument("--stop", type=int, help="end this command after that step, to be resumed")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    parser.add_argument("--start", help="exported model to start from; '' starts at random")
    parser.add_argument("--check", type=int, default=0, help="prompts per family to answer at the end")
    parser.add_argument("--compile", action="store_true", help="torch.compile; a minute, then faster")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    settings = read(given.recipe, steps=given.steps, seed=given.seed, start=given.start)
    out = given.out or Path("out/models") / settings.name
    out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    run = Run(settings, out, torch.device(given.device), compiled=given.compile)
    if given.resume:
        first = run.resume()
    else:
        first = 0
        run.begin()
        (out / "log.jsonl").unlink(missing_ok=True)
    last = min(given.stop or settings.steps, settings.steps)
    train(run, first, last)
    if given.check and last == settings.steps:
        run.log({"step": last, "accuracy": check(out, "validation", given.check)})


if __name__ == "__main__":
    main()
