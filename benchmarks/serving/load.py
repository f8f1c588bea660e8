"""Load: requests of natural lengths, and what an arm makes of their recipes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lastword.errors import SettingError
from lastword.models.base import MaskPredictor
from lastword.policies.length.fixed import Fixed
from lastword.prompts import tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.serve.request import ServerRequest
from lastword.serve.scheduler import Scheduler
from lastword.tasks import BENCHMARKS, load_frozen

CANVAS = 256  # slots of a canvas that nobody predicted: what embedded models are made for
MIX = {"careful": 3, "fast": 6, "paper": 1}  # requests of each recipe, of ten


@dataclass(frozen=True)
class Arm:
    """A way to serve."""

    says: str
    schedule: Scheduler = Scheduler()
    predicts: bool = True  # else the cap is the canvas


ARMS = {
    "predicted": Arm("slots, canvases and order by prediction"),
    "canvas": Arm("`max_tokens` is the canvas", predicts=False),
    "batches": Arm("batches that wait for their longest row", Scheduler(refills=False)),
    # Shortest first, a batch holds rows of like length, which others do not know how to do.
    "batches-fcfs": Arm("the same, first come, first served", Scheduler(overtaking=0.0, refills=False)),
    "fcfs": Arm("first come, first served", Scheduler(overtaking=0.0)),
}


def arm_of(name: str) -> Arm:
    """An arm by name; `overtaking=N` is ours with another bound on overtaking."""
    if name in ARMS:
        return ARMS[name]
    kind, _, number = name.partition("=")
    if kind != "overtaking":
        raise SettingError(f"there is no arm {name!r}; known: {', '.join(ARMS)}, overtaking=N")
    return Arm(f"a job is overtaken by up to {number} times the difference", Scheduler(float(number)))


@dataclass(frozen=True)
class LoadRequest:
    """A request."""

    number: int
    family: str
    recipe: str  # by name
    job: ServerRequest
    useful: int | None = None  # tokens that count; None: those of its text


def requests(
    model: MaskPredictor,
    count: int,
    *,
    mix: Mapping[str, int] = MIX,
    families: Sequence[str] = BENCHMARKS,
    prompts: int = 60,
    seed: int = 0,
) -> list[LoadRequest]:
    """Validation prompts, families in turn, `prompts` of each and then again; recipes drawn from the mix."""
    draw = random.Random(seed)
    known = {family: load_frozen("validation", family)[:prompts] for family in families}
    names = [name for name, weight in mix.items() for _ in range(weight)]
    chat = model.tokenizer is not None and model.tokenizer.chat_template is not None
    made = []
    for number in range(count):
        family = families[number % len(families)]
        text = known[family][number // len(families) % len(known[family])].prompt
        given = [{"role": "user", "content": text}] if chat else text
        (prompt,) = tokenize_prompts(model, [given])
        name = draw.choice(names)
        recipe = resolve(Recipe.named(name), model, [prompt])
        made.append(LoadRequest(number, family, name, ServerRequest(tuple(prompt), recipe)))
    return made


def asked_by(arm: Arm, asked: Sequence[LoadRequest], canvas: int = CANVAS) -> list[LoadRequest]:
    """The requests as an arm decodes them: rule, block and cache are the same in all."""
    if arm.predicts:
        return list(asked)
    return [
        replace(request, job=replace(request.job, recipe=replace(request.job.recipe, length=Fixed(canvas))))
        for request in asked
    ]
