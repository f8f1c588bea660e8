"""The load: requests with the lengths of real prompts, and the recipes of an arm."""

from __future__ import annotations

import math
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

CANVAS = 256  # slots without a prediction: the canvas of the embedded models
MIX = {"careful": 3, "fast": 6, "paper": 1}  # weights of the recipes


@dataclass(frozen=True)
class Arm:
    """A way to serve."""

    description: str
    scheduler: Scheduler = Scheduler()
    predicts: bool = True  # otherwise the canvas has `max_tokens` slots


ARMS = {
    "predicted": Arm("predicted canvases, shortest predicted request first, continuous batching"),
    "canvas": Arm("canvases of `max_tokens`", predicts=False),
    "batches": Arm("static batches, shortest predicted request first", Scheduler(refills=False)),
    # Without predicted lengths a batch cannot group requests of similar length.
    "batches-fcfs": Arm("static batches, first come, first served", Scheduler(overtaking=0.0, refills=False)),
    "without-deadlines": Arm(
        "predicted, with an order that ignores deadlines", Scheduler(max_delay=math.inf, headroom=0.0)
    ),
    "fcfs": Arm("first come, first served", Scheduler(overtaking=0.0)),
}


def arm_of(name: str) -> Arm:
    """Return an arm by name; `overtaking=N` is `predicted` with another bound on overtaking."""
    if name in ARMS:
        return ARMS[name]
    kind, _, number = name.partition("=")
    if kind != "overtaking":
        raise SettingError(f"arm {name!r} is unknown; the arms are {', '.join(ARMS)} and overtaking=N")
    return Arm(f"predicted, bound on overtaking {number}", Scheduler(float(number)))


@dataclass(frozen=True)
class LoadRequest:
    """A request of the load."""

    number: int
    family: str
    recipe: str  # by name
    job: ServerRequest
    useful: int | None = None  # number of useful tokens; None: the tokens of the text


def make_requests(
    model: MaskPredictor,
    count: int,
    *,
    mix: Mapping[str, int] = MIX,
    families: Sequence[str] = BENCHMARKS,
    prompts: int = 60,
    seed: int = 0,
) -> list[LoadRequest]:
    """Return requests with validation prompts, families in turn, and recipes drawn from the mix.

    There are `prompts` different prompts per family, which are repeated.
    """
    draw = random.Random(seed)
    known = {family: load_frozen("validation", family)[:prompts] for family in families}
    names = [name for name, weight in mix.items() for _ in range(weight)]
    chat = model.tokenizer is not None and model.tokenizer.chat_template is not None
    requests = []
    for number in range(count):
        family = families[number % len(families)]
        text = known[family][number // len(families) % len(known[family])].prompt
        prompt_input = [{"role": "user", "content": text}] if chat else text
        (prompt,) = tokenize_prompts(model, [prompt_input])
        name = draw.choice(names)
        recipe = resolve(Recipe.named(name), model, [prompt])
        requests.append(LoadRequest(number, family, name, ServerRequest(tuple(prompt), recipe)))
    return requests


def requests_of(arm: Arm, requests: Sequence[LoadRequest], canvas: int = CANVAS) -> list[LoadRequest]:
    """Return the requests with the canvas of an arm; unmask rule, block and cache are equal in all arms."""
    if arm.predicts:
        return list(requests)
    return [
        replace(request, job=replace(request.job, recipe=replace(request.job.recipe, length=Fixed(canvas))))
        for request in requests
    ]
