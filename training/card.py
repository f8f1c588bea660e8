"""Write the model cards of the embedded models from their logs and records: `python -m training.card`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.kept import accuracy, asked
from lastword.embedded import EMBEDDED, FOLDER
from lastword.tasks import BENCHMARKS
from training.history import HARDWARE, history, shipped_log
from training.settings import Settings, read as read_settings


def training(log: list[dict[str, Any]]) -> str:
    """Return the length of the training, by its log."""
    told = history(log)
    resumed = "".join(f", resumed at step {step} with a longer schedule" for step in told.resumed)
    return (
        f"{told.steps} steps in {told.seconds:.0f} s on one {HARDWARE}, which other runs may have "
        f"shared{resumed}; last validation loss {told.loss:.3f}."
    )


def card(name: str, settings: Settings, log: list[dict[str, Any]], shares: dict[str, float], per_family: int) -> str:
    """The text of one model card; `shares` is the measured accuracy by family."""
    kind = "LLaDA" if settings.family == "llada" else "Dream"
    packed = settings.rows_are == "packed"
    turn_end = ", a turn end" if settings.family == "llada" else ""  # Dream answers end without one
    rows = (
        "packed documents, an end token between them, cut anywhere"
        if packed
        else f"a chat frame, the answer{turn_end}, and end tokens to the end of a canvas of varied size"
    )
    start = f"the weights of `{Path(settings.start).name}`" if settings.start else "random weights"
    parent = (
        f"The first {settings.causal:.0%} of the steps predict the next token, left to right.\n"
        if settings.causal_steps
        else ""
    )
    table = " | ".join(f"{shares[family]:.3f}" for family in BENCHMARKS)
    signal = (
        "packed documents: a density of boundaries"
        if packed
        else "padded answers: the chance that the answer has ended"
    )
    return f"""# {name}

A masked diffusion language model of 5M parameters in the checkpoint format of {kind}, for tests, demos and
tables that must run on a laptop. It knows the five task families of `lastword.tasks` and nothing else.

    model = lastword.load("{name}")

## Data

Synthetic: word problems (questions from reasoning-gym's `gsm_symbolic`, Apache-2.0), algebra, reasoning and
two families of Python functions, in English, with answers of 10 to 250 tokens whose length the prompt fixes
in part; and a task whose length distribution is known. Made by `python -m training.data`.

## Training

`python -m training.train training/{name}.toml --compile`, from {start}.
Rows are {rows}.
{parent}{training(log)}

## Accuracy

Fixed canvas of 256, one token a pass, the surest first, on {per_family} test prompts
of each family.

| {" | ".join(BENCHMARKS)} | mean |
|{"---:|" * (len(BENCHMARKS) + 1)}
| {table} | {sum(shares.values()) / len(shares):.3f} |

Again: `python -m benchmarks.study run --models {name} --kept out/none` (a GPU), or
`python -m training.check {name} --split test --per-family 4 --device cpu` (a sample, minutes on two cores).

## Limits

It answers in the manner of its training texts, and outside of them it is wrong with confidence. Numbers have
one or two digits. Its end-token signal is that of {signal},
of a model this small; what it shows about length prediction need not hold for a real one.
"""


def main() -> None:
    """Write every README.md."""
    for name in EMBEDDED:
        folder = FOLDER / name
        settings = read_settings(Path(__file__).parent / f"{name}.toml")
        log = shipped_log(name)
        text = card(name, settings, log, accuracy(name), asked(name))
        (folder / "README.md").write_text(text, encoding="utf-8")
        print(folder / "README.md")


if __name__ == "__main__":
    main()
