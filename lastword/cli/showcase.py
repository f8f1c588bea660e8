"""One model shown at work: curve, fixed canvas beside predicted canvas, ledger."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import lastword
from lastword.cli.curve import draw_curve
from lastword.cli.live import watch
from lastword.generate import Generation, finished
from lastword.prompts import as_batch
from lastword.recipe import Recipe
from lastword.survival import LengthDistribution

LIMIT = 64
PROMPT_TEXT = "abc"
PROMPT_IDS = [5, 42, 17, 100, 63]  # any ids do: the model has no tokenizer and random weights


def showcase(name: str, console: Console) -> LengthDistribution:
    """Run the main job on one model and print what it cost."""
    model = lastword.load(name)
    prompt = PROMPT_IDS if model.tokenizer is None else PROMPT_TEXT
    console.rule(f"[bold]{name}[/]  prompt {prompt!r}")
    answers: dict[str, Generation] = {}
    for title, length in (("fixed", lastword.Fixed(LIMIT)), ("survival", lastword.Survival(LIMIT))):
        batch = as_batch(model, prompt)
        steps = lastword.decode(model, batch, Recipe(length=length))
        if console.is_terminal:
            steps = watch(steps, model.tokenizer, console, title)
        answers[title] = finished(model, batch, steps)[0]
    lengths = lastword.predict_length(model, prompt, limit=LIMIT)
    draw_curve(lengths, answers["survival"].horizon, console=console)
    console.print(ledger(answers))
    return lengths


def ledger(answers: dict[str, Generation]) -> Table:
    """What each canvas cost, the probe included."""
    table = Table("canvas", "slots", "passes", "columns", "of fixed", "seconds", "answer")
    base = _columns(answers["fixed"])
    for title, answer in answers.items():
        passes = answer.cost["passes"] + answer.probe_cost["passes"]
        text = answer.text if answer.text is not None else " ".join(map(str, answer.tokens))
        table.add_row(
            title,
            str(answer.horizon),
            str(passes),
            str(_columns(answer)),
            f"{_columns(answer) / base:.2f}",
            f"{answer.seconds:.3f}",
            text[:60],
        )
    return table


def _columns(answer: Generation) -> int:
    return answer.cost["columns"] + answer.probe_cost["columns"]
