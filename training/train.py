"""Train one embedded model: `python -m training.train training/tiny-llada-base.toml`.

The output folder contains `log.jsonl` and, after each validation, `checkpoint.pt` and the averaged weights in the
authors' format.
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
    """Run the steps from `first` to `last`, with a log line every `log_every` steps and a checkpoint per validation."""
    s, tokens, began = run.settings, 0, time.perf_counter()
    lap = began
    for step in range(first, last):
        loss, columns = run.advance(step)
        tokens, finished = tokens + columns, step + 1
        is_validation = finished % s.validate_every == 0 or finished == last
        if not is_validation and finished % s.log_every:
            continue
        line = {"step": finished, "loss": round(loss.item(), 5)}  # the only synchronisation with the device
        now = time.perf_counter()
        line |= {"tokens_per_second": int(tokens / (now - lap)), "seconds": round(now - began, 1)}
        if is_validation:
            line["validation_loss"] = round(run.validate(), 5)
            run.save(finished)
            run.export()  # so that a run that is stopped early leaves a usable model
        run.log(line)
        tokens, lap = 0, time.perf_counter()


def main() -> None:
    """Parse the arguments, create the run, and train."""
    parser = argparse.ArgumentParser(description="Train one of the embedded models.")
    parser.add_argument("recipe", type=Path, help="such as training/tiny-llada-base.toml")
    parser.add_argument("--out", type=Path, help="default: out/models/NAME")
    parser.add_argument("--steps", type=int, help="number of steps of the whole schedule")
    parser.add_argument("--stop", type=int, help="stop after this step; --resume continues the run")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--resume", action="store_true", help="continue from OUT/checkpoint.pt")
    parser.add_argument("--start", help="folder of an exported model to start from; '' for random weights")
    parser.add_argument("--check", type=int, default=0, help="prompts per family for the accuracy check at the end")
    parser.add_argument(
        "--compile", action="store_true", help="use torch.compile, which takes a minute and makes steps faster"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    settings = read(args.recipe, steps=args.steps, seed=args.seed, start=args.start)
    out = args.out or Path("out/models") / settings.name
    out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    run = Run(settings, out, torch.device(args.device), compiled=args.compile)
    if args.resume:
        first = run.resume()
    else:
        first = 0
        run.begin()
        (out / "log.jsonl").unlink(missing_ok=True)
    last = min(args.stop or settings.steps, settings.steps)
    train(run, first, last)
    if args.check and last == settings.steps:
        run.log({"step": last, "accuracy": check(out, "validation", args.check)})


if __name__ == "__main__":
    main()
