"""The comparison of `lastword demo`: the same prompts on the fixed and on the predicted canvas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import lastword
from lastword.api import Finish, Generation
from lastword.cli.console import canvas_panel, draw_curve, live_canvas
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError
from lastword.models.base import MaskPredictor
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.prompts import Prompt, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.sandbox.runner import Verdict, sandbox_info, sandbox_summary
from lastword.survival.distribution import LengthDistribution
from lastword.tasks import load_frozen
from lastword.tasks.families import BENCHMARKS, FAMILIES, CodeFamily, Example

EXAMPLE_INDEX = 3  # the same in every family, so that no prompt is chosen for its answer
PROMPT_TEXT = "abc"
PROMPT_IDS = [5, 42, 17, 100, 63]  # for a model without a tokenizer, whose weights are random
EMBEDDED_LIMIT, OTHER_LIMIT = 256, 64  # slots of the fixed canvas


@dataclass(frozen=True)
class Question:
    """A prompt, with the example that scores its answer if there is one."""

    title: str
    prompt: Prompt
    example: Example | None = None


@dataclass(frozen=True)
class Comparison:
    """The answers to one question on both canvases."""

    question: Question
    fixed: Generation
    predicted: Generation

    def is_right(self, answer: Generation) -> bool | None:
        """Return whether an answer is right; None if nothing can tell."""
        example = self.question.example
        return None if example is None else FAMILIES[example.family].score(example, answer.text or "")


class Curves(NamedTuple):
    """The predicted lengths of the questions, with a title and the written length of each."""

    lengths: LengthDistribution
    titles: list[str]
    written_lengths: list[int | None]  # including the end token; None: the answer did not end


def check_families(names: Sequence[str], families: Sequence[str] | None) -> None:
    """Raise SettingError if a model does not show a task family."""
    for name in names:
        known = BENCHMARKS if name in EMBEDDED else [name]
        for family in families or ():
            if family not in known:
                raise SettingError(f"--family {family!r} was given; {name} shows {', '.join(known)}: give one of them")


def showcase(name: str, console: Console, families: Collection[str] | None = None, pace: float = 1.0) -> Curves:
    """Compare both canvases on every question of a model and print the results."""
    recipe = Recipe(unmask=MostConfident(EqualShares(pace)))
    model = lastword.load(name)
    limit = EMBEDDED_LIMIT if name in EMBEDDED else OTHER_LIMIT
    questions = [q for q in _questions(name, model) if families is None or q.title in families]
    console.rule(f"[bold]{name}[/]  {pace:g} tokens per pass on both canvases")
    comparisons = []
    for number, question in enumerate(questions, 1):
        ids = tokenize_prompts(model, question.prompt)[0]
        text = model.tokenizer.decode(ids) if model.tokenizer else " ".join(map(str, ids))
        console.print(Panel(Text(text.rstrip()), title=f"{question.title} · {number}/{len(questions)}"))
        comparison = _compare(model, question, limit, recipe, console)
        comparisons.append(comparison)
        answers = Table("fixed canvas", "predicted canvas", expand=True)
        answers.add_row(*(Text(_text(answer)) for answer in (comparison.fixed, comparison.predicted)))
        console.print(answers, _costs([comparison], question.title))
    if len(comparisons) > 1:
        console.print(_costs(comparisons, "all of them"))
    if note := _sandbox_note(comparisons):
        console.print(note)
    return Curves(
        lastword.predict_length(model, [question.prompt for question in questions], limit=limit),
        [question.title for question in questions],
        [len(c.fixed.tokens) + 1 if c.fixed.finish is Finish.ENDED else None for c in comparisons],
    )


def _questions(name: str, model: MaskPredictor) -> list[Question]:
    """Return a held-out prompt of each family for an embedded model, and one prompt for any other."""
    if name not in EMBEDDED:
        return [Question(name, PROMPT_IDS if model.tokenizer is None else PROMPT_TEXT)]
    examples = [load_frozen("test", family)[EXAMPLE_INDEX] for family in BENCHMARKS]
    chat = getattr(model.tokenizer, "chat_template", None) is not None
    return [Question(e.family, [{"role": "user", "content": e.prompt}] if chat else e.prompt, e) for e in examples]


def _compare(model: MaskPredictor, question: Question, limit: int, recipe: Recipe, console: Console) -> Comparison:
    """Answer on the predicted canvas, then on the fixed one; on a terminal next to the first."""
    live = console.is_terminal
    with live_canvas(model, console, "predicted") if live else nullcontext() as on_step:
        predicted = lastword.generate(
            model, question.prompt, recipe=replace(recipe, length=default_length(limit)), on_step=on_step, frames=True
        )
    if predicted.lengths is not None:
        draw_curve(predicted.lengths, predicted.horizon, console=console)
    panels = [canvas_panel(frame, "predicted") for frame in predicted.frames or ()]
    with live_canvas(model, console, "fixed", panels) if live else nullcontext() as on_step:
        fixed = lastword.generate(
            model, question.prompt, recipe=replace(recipe, length=lastword.Fixed(limit)), on_step=on_step
        )
    return Comparison(question, fixed, predicted)


def _text(answer: Generation) -> str:
    return answer.text or " ".join(map(str, answer.tokens))


def _costs(comparisons: Sequence[Comparison], title: str) -> Table:
    """Return the total cost of each canvas, with the probe."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title)
    table.add_column("canvas", no_wrap=True)
    for header in ("slots", "passes", "columns", "of fixed", "seconds", "speedup", "right"):
        table.add_column(header, no_wrap=True, justify="right")
    fixed = [c.fixed for c in comparisons]
    for name, answers in (("fixed", fixed), ("predicted", [c.predicted for c in comparisons])):
        seconds, fixed_seconds = (sum(a.seconds for a in some) for some in (answers, fixed))
        right = [c.is_right(answer) for c, answer in zip(comparisons, answers)]
        table.add_row(
            name,
            f"{sum(a.horizon for a in answers) / len(answers):.0f}",
            str(_total(answers, "forward_passes")),
            str(_total(answers, "tokens_computed")),
            f"{_total(answers, 'tokens_computed') / _total(fixed, 'tokens_computed'):.2f}",
            f"{seconds:.2f}",
            f"{fixed_seconds / seconds:.1f}x",
            "" if None in right else f"{sum(map(bool, right))} of {len(right)}",
        )
    return table


def _total(answers: Sequence[Generation], cost: str) -> int:
    return sum(getattr(a.cost, cost) + getattr(a.probe_cost, cost) for a in answers)


def _sandbox_note(comparisons: Sequence[Comparison]) -> str:
    """Return how the code in answers was isolated when it was scored; an empty text if there is none."""
    verdicts = []
    for comparison in comparisons:
        example = comparison.question.example
        family = None if example is None else FAMILIES[example.family]
        if example is not None and isinstance(family, CodeFamily):
            texts = [answer.text or "" for answer in (comparison.fixed, comparison.predicted)]
            verdicts += [outcome.verdict for outcome in family.run_all([example] * 2, texts)]
    if not verdicts:
        return ""
    return sandbox_summary(sandbox_info(plain=True), len(verdicts), verdicts.count(Verdict.REFUSED))
