"""Write the model cards of the embedded models from their logs and records: `python -m training.card`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.kept import accuracy, prompts_per_family
from lastword.embedded import EMBEDDED, FOLDER
from lastword.tasks import BENCHMARKS
from training.history import HARDWARE, history, shipped_log
from training.settings import Settings, read as read_settings


def training(log: list[dict[str, Any]]) -> str:
    """Return a sentence on the length of the training run with this log."""
    run = history(log)
    resumed = "".join(f", resumed at step {step} with a longer schedule" for step in run.resumed)
    return (
        f"{run.steps} steps in {run.seconds:.0f} s on one {HARDWARE}, which other runs may have "
        f"shared{resumed}; last validation loss {run.loss:.3f}."
    )


def card(name: str, settings: Settings, log: list[dict[str, Any]], shares: dict[str, float], per_family: int) -> str:
    """Return the text of a model card; `shares` has the measured accuracy of each task family."""
    kind = "LLaDA" if settings.family == "llada" else "Dream"
    packed = settings.rows_are == "packed"
    turn_end = ", an end-of-turn token" if settings.family == "llada" else ""  # Dream answers end without one
    rows = (
        "packed documents, separated by end tokens and cut at random positions"
        if packed
        else f"a prompt in the chat template, its answer{turn_end}, and end tokens up to a canvas of random size"
    )
    start = (
        f"starts from the weights of `{Path(settings.start).name}`" if settings.start else "starts from random weights"
    )
    causal = (
        f"In the first {settings.causal:.0%} of the steps, the model predicts the next token, from left to right.\n"
        if settings.causal_steps
        else ""
    )
    table = " | ".join(f"{shares[family]:.3f}" for family in BENCHMARKS)
    signal = (
        "the probability that a document ends at a slot (packed documents)"
        if packed
        else "the probability that the answer has ended by a slot (padded answers)"
    )
    return f"""# {name}

A masked diffusion language model with 5M parameters in the checkpoint format of {kind}. It is meant for tests, demos
and tables that must run on a laptop. It is trained on the synthetic tasks of `lastword.tasks` and on nothing else.

    model = lastword.load("{name}")

## Data

The training data is synthetic and in English. There are five task families: word problems (questions from
`gsm_symbolic` of reasoning-gym, Apache-2.0), algebra, reasoning and two families of Python functions. Answers have 10
to 250 tokens, and the prompt determines part of the length. A sixth task has a known length distribution.
`python -m training.data` generates the data.

## Training

`python -m training.train training/{name}.toml --compile` {start}.
A training row contains {rows}.
{causal}The run took {training(log)}

## Accuracy

Accuracy was measured on {per_family} test prompts per family, on a fixed canvas of 256 slots. Each forward pass
decoded one token, the most confident one.

| {" | ".join(BENCHMARKS)} | mean |
|{"---:|" * (len(BENCHMARKS) + 1)}
| {table} | {sum(shares.values()) / len(shares):.3f} |

The first command reproduces the table on a GPU. The second measures a sample on two CPU cores in a few minutes.

    python -m benchmarks.study run --models {name} --kept out/none
    python -m training.check {name} --split test --per-family 4 --device cpu

## Limits

The model imitates its training texts. On other prompts its answers are wrong, and its confidence is high. Most numbers
have one or two digits. Its end-token signal is {signal}.
Results on length prediction with a model of this size may not hold for large models.
"""


def main() -> None:
    """Write the README.md of every embedded model."""
    for name in EMBEDDED:
        folder = FOLDER / name
        settings = read_settings(Path(__file__).parent / f"{name}.toml")
        log = shipped_log(name)
        text = card(name, settings, log, accuracy(name), prompts_per_family(name))
        (folder / "README.md").write_text(text, encoding="utf-8")
        print(folder / "README.md")


if __name__ == "__main__":
    main()
