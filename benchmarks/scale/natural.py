"""Requests with measured lengths: predicted and written length and forward passes of each prompt.

The embedded models have a canvas of 256 slots and represent models with 1,024 slots: lengths and numbers of
forward passes are multiplied by 4, or by the scales of the traffic. Prompts have the lengths of the mixed batches
of `python -m benchmarks.passes`.
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

Rule = Literal["one token per pass", "entropy bound"]
Canvas = Literal["fixed", "stop", "predicted"]

RULES: tuple[Rule, ...] = ("one token per pass", "entropy bound")
SPLIT = "validation"
CACHE = " + dual cache, prompt computed once"
ARMS: dict[Rule, str] = {
    "one token per pass": f"{DEFAULT}{CACHE}",
    "entropy bound": f"{DEFAULT} + entropy bound 0.1{CACHE}",
}
SLOTS = 1024  # max_tokens of every request
BLOCK = 32
PROMPTS = (200, 1100)


class PromptData(NamedTuple):
    """The measured lengths and forward passes of all prompts of the records."""

    horizon: Numbers  # planned from the probe
    written: Numbers  # length on the fixed canvas
    passes: dict[Rule, Numbers]  # on the predicted canvas, without the probe


def load_prompts() -> PromptData:
    """Return the prompts of all four models, from the records of the study and of the fast recipe."""
    results = fast.read(SPLIT)
    horizon, written = list[int](), list[int]()
    passes: dict[Rule, list[int]] = {rule: [] for rule in RULES}
    for model in MODELS:
        horizon += [answer.horizon for answer in _answers(model, DEFAULT)]
        written += [answer.length or 0 for answer in _answers(model, "fixed 256")]
        for rule, arm in ARMS.items():
            passes[rule] += (results[model][arm].forward_passes - 1).tolist()  # without the probe
    return PromptData(
        _at_least_one(horizon), _at_least_one(written), {rule: _at_least_one(counts) for rule, counts in passes.items()}
    )


def _answers(model: str, arm: str) -> list[Answer]:
    answers = answers_of(model, recipe_of(arm), SPLIT)
    return sorted(answers, key=lambda answer: (BENCHMARKS.index(answer.task), answer.index))


def _at_least_one(values: list[int]) -> Numbers:
    return np.maximum(np.array(values, dtype=np.float64), 1)


@dataclass(frozen=True)
class Work:
    """The work of requests, an entry per request."""

    passes: Numbers
    tokens_computed: Numbers  # in all passes
    predicted_passes: Numbers  # as estimated by the router and the queue
    predicted_tokens: Numbers  # computed, as estimated
    probe: Numbers  # tokens computed by the probe; 0 without a probe
    tokens: Numbers  # useful tokens of the answer
    block: float  # passes per block

    def __len__(self) -> int:
        return len(self.passes)

    def seconds(self, cost: PassCost, slots: int) -> Numbers:
        """Return the device seconds of each request with all slots in use, without the probe."""
        return cost.seconds(self.tokens_computed, self.passes / slots)

    def predicted_seconds(self, cost: PassCost, slots: int) -> Numbers:
        """Return the predicted seconds of each request with all slots in use."""
        return cost.seconds(self.predicted_tokens, self.predicted_passes / slots)

    def probe_seconds(self, cost: PassCost) -> Numbers:
        """Return the device seconds of the probe."""
        return np.where(self.probe > 0, cost.seconds(self.probe), 0.0)

    def capacity(self, cost: PassCost, slots: int) -> float:
        """Return the maximum requests per second of one replica."""
        return 1 / float((self.seconds(cost, slots) + self.probe_seconds(cost)).mean())


@dataclass(frozen=True)
class Traffic:
    """The unmask rule of the requests, and the factors of their lengths relative to the records."""

    rule: Rule
    scales: tuple[int, ...] = (4,)  # equally likely


def draw_work(prompts: PromptData, traffic: Traffic, canvas: Canvas, count: int, seed: int = 0) -> Work:
    """Draw requests from the prompts with replacement; the draw is the same for every rule and canvas.

    - `fixed`: 1,024 slots are filled. For several tokens per forward pass, the passes of the slots after the answer
      were not recorded; they are assumed to be one per block, which is the minimum.
    - `stop`: a canvas of 1,024 slots that stops with the block in which the answer ends. It takes as many passes as
      the predicted canvas, and the start of a block computes the whole canvas.
    - `predicted`: a probe, then the planned canvas, which grows if it is too short.
    """
    draw = np.random.default_rng((seed, 1))
    picked = draw.integers(len(prompts.horizon), size=count)
    prompt = draw.integers(*PROMPTS, size=count, endpoint=True).astype(np.float64)
    scale = draw.choice(np.array(traffic.scales, dtype=np.float64), size=count)
    passes_per_slot = float(prompts.passes[traffic.rule].sum() / prompts.horizon.sum())
    horizon = np.minimum(scale * prompts.horizon[picked], SLOTS)
    blocks = np.ceil(np.minimum(scale * prompts.passes["one token per pass"][picked], SLOTS) / BLOCK)
    passes = np.clip(scale * prompts.passes[traffic.rule][picked], blocks, SLOTS)
    tokens = np.minimum(scale * prompts.written[picked], SLOTS)
    all_slots, all_blocks = np.full(count, float(SLOTS)), np.full(count, SLOTS / BLOCK)
    block = passes_per_slot * BLOCK
    if canvas == "predicted":
        predicted_blocks = np.ceil(horizon / BLOCK)
        predicted_passes = np.maximum(np.maximum(passes_per_slot * horizon, 1), predicted_blocks)
        slots = np.minimum(np.maximum(horizon, BLOCK * blocks), SLOTS)
        computed = _tokens_computed(prompt, passes, blocks, slots)
        predicted = _tokens_computed(prompt, predicted_passes, predicted_blocks, horizon)
        return Work(passes, computed, predicted_passes, predicted, prompt + SLOTS, tokens, block)
    if canvas == "fixed":
        passes = all_slots if traffic.rule == "one token per pass" else passes + all_blocks - blocks
        blocks = all_blocks
    computed = _tokens_computed(prompt, passes, blocks, all_slots)
    # Without a probe the best estimate is the mean.
    predicted_passes, predicted = (np.full(count, float(values.mean())) for values in (passes, computed))
    return Work(passes, computed, predicted_passes, predicted, np.zeros(count), tokens, block)


def _tokens_computed(prompt: Numbers, passes: Numbers, blocks: Numbers, slots: Numbers) -> Numbers:
    """Return the tokens that a row computes: its prompt once, its canvas at the start of a block, else a block."""
    return prompt + blocks * slots + (passes - blocks) * BLOCK
