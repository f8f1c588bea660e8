"""Natural requests: what was predicted and written, prompt by prompt, and the passes that it took.

Embedded models have a canvas of 256 slots and stand for larger ones with 1,024: every length and every count
of passes is taken four times, or as many times as the traffic says. Prompts are as long as in the mixed
batches of `python -m benchmarks.passes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from benchmarks import fast
from benchmarks.arms import DEFAULT, MODELS, recipe_of
from benchmarks.kept import answers_of
from benchmarks.scale.cost import Numbers, PassCost
from lastword.evaluate.records import Answer
from lastword.tasks import BENCHMARKS

Rule = Literal["one token a pass", "entropy bound"]
Canvas = Literal["fixed", "stop", "predicted"]

RULES: tuple[Rule, ...] = ("one token a pass", "entropy bound")
SPLIT = "validation"
KEPT = " + dual cache, prompt kept"
ARMS: dict[Rule, str] = {"one token a pass": DEFAULT + KEPT, "entropy bound": f"{DEFAULT} + entropy bound 0.1{KEPT}"}
SLOTS = 1024  # max_tokens of every request
BLOCK = 32
PROMPTS = (200, 1100)


class Asked(NamedTuple):
    """Every prompt of the records."""

    horizon: Numbers  # planned by the probe
    written: Numbers  # on the fixed canvas
    passes: dict[Rule, Numbers]  # on the predicted one, without the probe


def asked() -> Asked:
    """The prompts of all four models, from the records of the study and of the fast default."""
    counted = fast.read(SPLIT)
    horizon, written = list[int](), list[int]()
    passes: dict[Rule, list[int]] = {rule: [] for rule in RULES}
    for model in MODELS:
        horizon += [answer.horizon for answer in _answers(model, DEFAULT)]
        written += [answer.length or 0 for answer in _answers(model, "fixed 256")]
        for rule, arm in ARMS.items():
            passes[rule] += (counted[model][arm].passes - 1).tolist()  # the probe is one of them
    return Asked(_some(horizon), _some(written), {rule: _some(own) for rule, own in passes.items()})


def _answers(model: str, arm: str) -> list[Answer]:
    return sorted(answers_of(model, recipe_of(arm), SPLIT), key=lambda own: (BENCHMARKS.index(own.task), own.index))


def _some(values: list[int]) -> Numbers:
    return np.maximum(np.array(values, dtype=np.float64), 1)


@dataclass(frozen=True)
class Work:
    """The work of requests, an entry per request."""

    passes: Numbers
    columns: Numbers  # of all its passes
    predicted_passes: Numbers  # what the router and the queue take it to need
    predicted_columns: Numbers
    probe: Numbers  # columns of the probe, 0 without one
    tokens: Numbers  # useful ones
    block: float  # passes that a block takes

    def __len__(self) -> int:
        return len(self.passes)

    def seconds(self, cost: PassCost, slots: int) -> Numbers:
        """Return the device seconds of each request with all slots in use, without the probe."""
        return cost.seconds(self.columns, self.passes / slots)

    def predicted_seconds(self, cost: PassCost, slots: int) -> Numbers:
        """The same by prediction."""
        return cost.seconds(self.predicted_columns, self.predicted_passes / slots)

    def probe_seconds(self, cost: PassCost) -> Numbers:
        """Return the device seconds of the probe."""
        return np.where(self.probe > 0, cost.seconds(self.probe), 0.0)

    def capacity(self, cost: PassCost, slots: int) -> float:
        """Requests a second that one replica can do at most, all its slots in use."""
        return 1 / float((self.seconds(cost, slots) + self.probe_seconds(cost)).mean())


@dataclass(frozen=True)
class Traffic:
    """Which requests come: how they are unmasked, and how many times as long as in the records."""

    rule: Rule
    scales: tuple[int, ...] = (4,)  # each as likely


def work(found: Asked, traffic: Traffic, canvas: Canvas, count: int, seed: int = 0) -> Work:
    """Draw requests from the prompts with replacement: the same draw for every rule and canvas.

    - `fixed`: 1,024 slots are filled. With several tokens a pass nobody recorded the passes that empty
      slots take; they are taken to cost one a block, which is the least.
    - `stop`: a canvas of 1,024 slots, left with the block in which the answer ends: as many passes as on the
      predicted one, whose blocks open on the whole canvas.
    - `predicted`: the planned canvas, grown where it did not do, behind a probe.
    """
    draw = np.random.default_rng((seed, 1))
    picked = draw.integers(len(found.horizon), size=count)
    prompt = draw.integers(*PROMPTS, size=count, endpoint=True).astype(np.float64)
    scale = draw.choice(np.array(traffic.scales, dtype=np.float64), size=count)
    pace = float(found.passes[traffic.rule].sum() / found.horizon.sum())
    horizon = np.minimum(scale * found.horizon[picked], SLOTS)
    blocks = np.ceil(np.minimum(scale * found.passes["one token a pass"][picked], SLOTS) / BLOCK)
    passes = np.clip(scale * found.passes[traffic.rule][picked], blocks, SLOTS)
    tokens = np.minimum(scale * found.written[picked], SLOTS)
    whole, most = np.full(count, float(SLOTS)), np.full(count, SLOTS / BLOCK)
    block = pace * BLOCK
    if canvas == "predicted":
        likely, ahead = np.ceil(horizon / BLOCK), np.maximum(pace * horizon, 1)
        slots = np.minimum(np.maximum(horizon, BLOCK * blocks), SLOTS)
        columns = _columns(prompt, passes, blocks, slots)
        foreseen = _columns(prompt, np.maximum(ahead, likely), likely, horizon)
        return Work(passes, columns, np.maximum(ahead, likely), foreseen, prompt + SLOTS, tokens, block)
    if canvas == "fixed":
        passes = whole if traffic.rule == "one token a pass" else passes + most - blocks
        blocks = most
    columns = _columns(prompt, passes, blocks, whole)
    # Without a probe nobody knows better than the mean.
    likely, foreseen = (np.full(count, float(own.mean())) for own in (passes, columns))
    return Work(passes, columns, likely, foreseen, np.zeros(count), tokens, block)


def _columns(prompt: Numbers, passes: Numbers, blocks: Numbers, slots: Numbers) -> Numbers:
    """Return the columns that a row computes: its prompt once, its canvas where a block opens, else a block."""
    return prompt + blocks * slots + (passes - blocks) * BLOCK
