"""The comparison of `lastword demo`: the same prompts on the fixed and on the predicted canvas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import lastword
from lastword.cli.console import canvas_panel, draw_curve, live_canvas
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError
from lastword.prompts import Prompt, tokenize_prompts
from lastword.recipe.registry import default_length
from lastword.sandbox.runner import Verdict, sandbox_info, sandbox_summary
from lastword.tasks import load_frozen
from lastword.tasks.families import BENCHMARKS, FAMILIES, Example

EXAMPLE_INDEX = 3  # the same in every family, so that no prompt is chosen for its answer
PROMPT_TEXT = "abc"
PROMPT_IDS = [5, 42, 17, 100, 63]  # for a model without a tokenizer, whose weights are random
EMBEDDED_LIMIT, OTHER_LIMIT = 256, 64  # slots of the fixed canvas


@dataclass(frozen=True)
class CanvasComparison:
    """The answers to a prompt on the fixed and on the predicted canvas, with their verdicts if they can be scored."""

    title: str  # the task family of the prompt, or the model
    prompt: Prompt
    answers: tuple[lastword.Generation, lastword.Generation]
    verdicts: Sequence[Verdict]


def check_families(names: Sequence[str], families: Sequence[str] | None) -> None:
    """Raise SettingError unless `lastword demo` has a prompt of each given task family for each model."""
    for name in names:
        known = BENCHMARKS if name in EMBEDDED else [name]
        for family in families or ():
            if family not in known:
                raise SettingError(f"--family {family!r} was given; {name} shows {', '.join(known)}: give one of them")


def showcase(
    name: str, console: Console, families: Collection[str] | None = None, pace: float = 1.0, plot: Path | None = None
) -> None:
    """Decode prompts on a fixed and on a predicted canvas, print both, and save survival curves to `plot`."""
    recipe = lastword.Recipe(unmask=lastword.MostConfident(lastword.EqualShares(pace)))
    model = lastword.load(name)
    limit = EMBEDDED_LIMIT if name in EMBEDDED else OTHER_LIMIT
    questions = [question for question in _questions(name, model) if families is None or question[0] in families]
    console.rule(f"[bold]{name}[/]  {pace:g} tokens per forward pass on both canvases")
    comparisons: list[CanvasComparison] = []
    for number, (title, prompt, example) in enumerate(questions, 1):
        ids = tokenize_prompts(model, prompt)[0]
        text = model.tokenizer.decode(ids) if model.tokenizer else " ".join(map(str, ids))
        console.print(Panel(Text(text.rstrip()), title=f"{title} · {number}/{len(questions)}"))
        pair = _answers(model, prompt, limit, recipe, console)
        texts = [answer.text or "" for answer in pair]
        verdicts = [] if example is None else FAMILIES[example.family].verdicts([example] * 2, texts)
        comparisons.append(CanvasComparison(title, prompt, pair, verdicts))
        answers = Table("fixed canvas", "predicted canvas", expand=True)
        answers.add_row(*(Text(answer.text or " ".join(map(str, answer.tokens))) for answer in pair))
        console.print(answers, _costs(comparisons[-1:], title))
    if len(comparisons) > 1:
        console.print(_costs(comparisons, "all of them"))
    if verdicts := [verdict for c in comparisons for verdict in c.verdicts if FAMILIES[c.title].runs_code]:
        console.print(sandbox_summary(sandbox_info(plain=True), len(verdicts), verdicts.count(Verdict.REFUSED)))
    if plot is not None:
        lengths = lastword.predict_length(model, [c.prompt for c in comparisons], limit=limit)
        fixed = [c.answers[0] for c in comparisons]
        truths = [len(answer.tokens) + 1 if answer.finish is lastword.Finish.ENDED else None for answer in fixed]
        lastword.save_rows(lengths, [c.title for c in comparisons], plot, truths=truths)
        console.print(f"wrote {plot}")


def _questions(name: str, model: lastword.MaskPredictor) -> list[tuple[str, Prompt, Example | None]]:
    """Return (title, prompt, example) per task family for an embedded model; for others, one without an example."""
    if name not in EMBEDDED:
        return [(name, PROMPT_IDS if model.tokenizer is None else PROMPT_TEXT, None)]
    examples = [load_frozen("test", family)[EXAMPLE_INDEX] for family in BENCHMARKS]
    chat = getattr(model.tokenizer, "chat_template", None) is not None
    return [(e.family, [{"role": "user", "content": e.prompt}] if chat else e.prompt, e) for e in examples]


def _answers(
    model: lastword.MaskPredictor, prompt: Prompt, limit: int, recipe: lastword.Recipe, console: Console
) -> tuple[lastword.Generation, lastword.Generation]:
    """Return the answers on the fixed and on the predicted canvas; the predicted one is decoded first."""
    predicted_recipe, fixed_recipe = (
        replace(recipe, length=length) for length in (default_length(limit), lastword.Fixed(limit))
    )
    with live_canvas(model, console, "predicted") as on_step:
        predicted = lastword.generate(model, prompt, recipe=predicted_recipe, on_step=on_step, frames=True)
    if predicted.lengths is not None:
        draw_curve(predicted.lengths, predicted.horizon, console=console)
    panels = [canvas_panel(frame, "predicted") for frame in predicted.frames or ()]
    with live_canvas(model, console, "fixed", panels) as on_step:
        return lastword.generate(model, prompt, recipe=fixed_recipe, on_step=on_step), predicted


def _costs(comparisons: Sequence[CanvasComparison], title: str) -> Table:
    """Return a table with the total cost of each canvas, probes included."""
    table = Table("canvas", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title)
    for header in ("slots", "passes", "tokens computed", "share", "seconds", "speedup", "correct"):
        table.add_column(header, justify="right")
    for column in table.columns:
        column.no_wrap = True
    fixed = [c.answers[0] for c in comparisons]
    computed, seconds = _total(fixed, "tokens_computed"), sum(answer.seconds_share for answer in fixed)
    for canvas, name in enumerate(("fixed", "predicted")):
        answers = [c.answers[canvas] for c in comparisons]
        own_seconds = sum(answer.seconds_share for answer in answers)
        right = [c.verdicts[canvas] is Verdict.PASSED for c in comparisons if c.verdicts]
        table.add_row(
            name,
            f"{sum(a.horizon for a in answers) / len(answers):.0f}",
            str(_total(answers, "forward_passes")),
            str(_total(answers, "tokens_computed")),
            f"{_total(answers, 'tokens_computed') / computed:.2f}",
            f"{own_seconds:.2f}",
            f"{seconds / own_seconds:.1f}x",
            f"{sum(right)} of {len(right)}" if right else "",
        )
    return table


def _total(answers: Sequence[lastword.Generation], cost: str) -> int:
    return sum(getattr(a.cost, cost) + getattr(a.probe_cost, cost) for a in answers)
