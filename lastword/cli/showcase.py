"""Denoising on a terminal: survival curves, redrawn canvases, and the comparison of `lastword demo`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import lastword
from lastword.api import Finish, Generation
from lastword.decoding.loop import Step
from lastword.embedded import EMBEDDED
from lastword.errors import SettingError
from lastword.models.base import TextTokenizer
from lastword.policies.unmask.ranked import MostConfident
from lastword.policies.unmask.schedule import EqualShares
from lastword.prompts import Prompt, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.registry import default_length
from lastword.sandbox.runner import Verdict, sandbox_info, sandbox_summary
from lastword.survival.distribution import LengthDistribution
from lastword.tasks.families import BENCHMARKS, FAMILIES, CodeFamily, Example
from lastword.tasks.frozen import load_frozen

EIGHTHS, MARK = " ▁▂▃▄▅▆▇█", "│"
PLAIN_EIGHTHS, PLAIN_MARK = " ..::++##", "|"  # where the output takes ASCII only
HEIGHT = 8


def draw_curve(lengths: LengthDistribution, horizon: int, *, console: Console | None = None) -> None:
    """Print one prompt's S(k), the horizon marked; each character column averages the slots under it."""
    console = console or Console()
    width = min(lengths.slots, max(20, console.width - 8))
    survival = lengths.survival[:-1]
    edges = [round(place * lengths.slots / width) for place in range(width + 1)]
    heights = [survival[a:b].mean().item() for a, b in pairwise(edges)]
    mark = next(place for place, edge in enumerate(edges[1:]) if horizon <= edge)
    plain = console.options.ascii_only
    eighths_of, empty_mark = (PLAIN_EIGHTHS, PLAIN_MARK) if plain else (EIGHTHS, MARK)
    for level in reversed(range(HEIGHT)):
        label = {HEIGHT - 1: "S=1 ", 0: "  0 "}.get(level, "    ")
        line = Text(label, style="dim")
        for place, height in enumerate(heights):
            eighths = min(8, max(0, round((height * HEIGHT - level) * 8)))
            style = "bold red" if place == mark else "blue" if place < mark else "bright_black"
            empty = empty_mark if place == mark else " "
            line.append(eighths_of[eighths] if eighths else empty, style=style)
        console.print(line, soft_wrap=True)
    pointer = f"^ {horizon}"
    console.print(Text("    " + " " * mark + pointer, style="bold red"), soft_wrap=True)


MASK = "░"


Watcher = Callable[[Step], None]


@contextmanager
def watching(tokenizer: TextTokenizer | None, console: Console, title: str) -> Iterator[Watcher]:
    """Draws row 0 of every step it is shown."""
    with Live(console=console, refresh_per_second=20, transient=True) as live:
        yield lambda step: live.update(panel(step, tokenizer, title))


@contextmanager
def watching_beside(
    tokenizer: TextTokenizer | None, console: Console, title: str, frames: Sequence[Panel]
) -> Iterator[Watcher]:
    """Draws every step it is shown beside the frame another run had after as many."""
    half = console.width // 2 - 1
    left = iter(frames)
    with Live(console=console, refresh_per_second=20, transient=True) as live:

        def show(step: Step) -> None:
            other = next(left, frames[-1])
            live.update(Columns([panel(step, tokenizer, title), other], width=half))

        yield show


def panel(step: Step, tokenizer: TextTokenizer | None, title: str) -> Panel:
    """Row 0's answer: written tokens, masks, and what came in this pass."""
    canvas = step.canvas
    new = {int(column) - canvas.start for column in step.chosen[0].nonzero()}
    text = Text()
    for slot, token in enumerate(canvas.answer_ids(0)):
        if token == canvas.ids.mask:
            text.append(MASK, style="bright_black")
        elif token in canvas.ids.ends:
            text.append("·", style="dim red")
        else:
            piece = tokenizer.decode([token]) if tokenizer else f"{token} "
            text.append(piece, style="bold green" if slot in new else "")
    left = int(canvas.masked[0].sum())
    passes = int(step.cost.forward_passes[0])
    return Panel(
        text,
        title=f"{title} · {int(canvas.horizon[0])} slots",
        subtitle=f"pass {passes} · {left} masks left",  # half a terminal is too narrow for one line
    )


# The same place among every family's test prompts, so nothing was picked for its answer.
PLACE = 3
PROMPT_TEXT = "abc"
PROMPT_IDS = [5, 42, 17, 100, 63]  # any ids do: such a model has no tokenizer and random weights


@dataclass(frozen=True)
class Question:
    """A prompt to show, and the example that can judge its answer where there is one."""

    title: str
    prompt: Prompt
    example: Example | None = None

    def right(self, answer: Generation) -> bool | None:
        if self.example is None:
            return None
        return FAMILIES[self.example.family].score(self.example, answer.text or "")


@dataclass(frozen=True)
class Comparison:
    """One question answered on both canvases."""

    question: Question
    fixed: Generation
    predicted: Generation


def check_families(names: Sequence[str], families: Sequence[str] | None) -> None:
    """Refuse a task family that a model does not show, before any is loaded."""
    for name in names:
        known = BENCHMARKS if name in EMBEDDED else [name]
        for family in families or ():
            if family not in known:
                raise SettingError(
                    f"--family {family!r} was given; {name} shows {', '.join(known)}: give one of them"
                )


def questions(name: str, model: Any) -> list[Question]:
    """A held-out prompt of each family for an embedded model, one prompt for any other."""
    if name not in EMBEDDED:
        return [Question(name, PROMPT_IDS if model.tokenizer is None else PROMPT_TEXT)]
    examples = [load_frozen("test", family)[PLACE] for family in BENCHMARKS]
    chat = model.tokenizer.chat_template is not None
    return [
        Question(e.family, [{"role": "user", "content": e.prompt}] if chat else e.prompt, e) for e in examples
    ]


def showcase(
    name: str, console: Console, families: Iterable[str] | None = None, pace: float = 1.0
) -> tuple[LengthDistribution, list[str], list[int | None]]:
    """Run the main job on one model, a question at a time; returns curves, titles and lengths written."""
    recipe = Recipe(unmask=MostConfident(EqualShares(pace)))
    model: Any = lastword.load(name)
    limit = 256 if name in EMBEDDED else 64
    known = questions(name, model)
    asked = [q for q in known if families is None or q.title in families]
    console.rule(f"[bold]{name}[/]  {pace:g} tokens a pass on both canvases")
    compared = [
        _compare(model, question, limit, recipe, console, f"{number}/{len(asked)}")
        for number, question in enumerate(asked, 1)
    ]
    if len(compared) > 1:
        console.print(ledger(compared, "all of them"))
    if note := code_note(compared):
        console.print(note)
    lengths = lastword.predict_length(model, [q.prompt for q in asked], limit=limit)
    return lengths, [q.title for q in asked], [_written(c.fixed) for c in compared]


def _written(answer: Generation) -> int | None:
    """How long the answer is, its end token counted; None where it did not end."""
    return len(answer.tokens) + 1 if answer.finish is Finish.ENDED else None


def _compare(
    model: Any, question: Question, limit: int, recipe: Recipe, console: Console, number: str
) -> Comparison:
    batch = tokenize_prompts(model, question.prompt)
    shown = model.tokenizer.decode(batch[0]) if model.tokenizer else " ".join(map(str, batch[0]))
    console.print(Panel(Text(shown.rstrip()), title=f"{question.title} · {number}"))
    frames: list[Panel] = []  # of the predicted canvas, replayed beside the fixed one
    first = watching(model.tokenizer, console, "predicted")
    with first if console.is_terminal else nullcontext() as watcher:

        def keep(step: Step) -> None:
            frames.append(panel(step, model.tokenizer, "predicted"))
            if watcher is not None:
                watcher(step)

        predicted = lastword.generate(
            model,
            question.prompt,
            recipe=replace(recipe, length=default_length(limit)),
            on_step=keep,
        )
    if predicted.lengths is not None:
        draw_curve(predicted.lengths, predicted.horizon, console=console)
    race = watching_beside(model.tokenizer, console, "fixed", frames)
    with race if console.is_terminal else nullcontext() as watcher:
        fixed = lastword.generate(
            model,
            question.prompt,
            recipe=replace(recipe, length=lastword.Fixed(limit)),
            on_step=watcher,
        )
    comparison = Comparison(question, fixed, predicted)
    console.print(_answers(comparison), ledger([comparison], question.title))
    return comparison


def _answers(c: Comparison) -> Table:
    table = Table("fixed canvas", "predicted canvas", expand=True)
    table.add_row(*(Text(a.text or " ".join(map(str, a.tokens))) for a in (c.fixed, c.predicted)))
    return table


def ledger(compared: Sequence[Comparison], title: str) -> Table:
    """What each canvas cost in all, the probe included."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))  # 80 columns are enough
    table.title = title
    table.add_column("canvas", no_wrap=True)
    for head in ("slots", "passes", "columns", "of fixed", "seconds", "speedup", "right"):
        table.add_column(head, no_wrap=True, justify="right")
    fixed = [c.fixed for c in compared]
    for name, mine in (("fixed", fixed), ("predicted", [c.predicted for c in compared])):
        seconds, base = sum(a.seconds for a in mine), sum(a.seconds for a in fixed)
        right = [c.question.right(a) for c, a in zip(compared, mine)]
        table.add_row(
            name,
            f"{sum(a.horizon for a in mine) / len(mine):.0f}",
            str(_spent(mine, "forward_passes")),
            str(_spent(mine, "tokens_computed")),
            f"{_spent(mine, 'tokens_computed') / _spent(fixed, 'tokens_computed'):.2f}",
            f"{seconds:.2f}",
            f"{base / seconds:.1f}x",
            "" if None in right else f"{sum(map(bool, right))} of {len(right)}",
        )
    return table


def code_note(compared: Sequence[Comparison]) -> str:
    """How answers that are code were kept in when they were checked; nothing if none is."""
    outcomes = [
        outcome
        for c in compared
        if c.question.example is not None
        and isinstance(family := FAMILIES[c.question.example.family], CodeFamily)
        for outcome in family.run_all(
            [c.question.example] * 2, [answer.text or "" for answer in (c.fixed, c.predicted)]
        )
    ]
    refused = sum(outcome.verdict is Verdict.REFUSED for outcome in outcomes)
    return sandbox_summary(sandbox_info(plain=True), len(outcomes), refused) if outcomes else ""


def _spent(answers: Sequence[Generation], what: str) -> int:
    return sum(getattr(a.cost, what) + getattr(a.probe_cost, what) for a in answers)
