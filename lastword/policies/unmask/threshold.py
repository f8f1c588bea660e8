"""Rules that fill several masks per step where the model is confident (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.policies.unmask.ranked import first_ranked, rank_columns, topk_mask
from lastword.policies.unmask.rule import UnmaskRule, UnmaskTraits
from lastword.validation import check_number, check_type


@dataclass(frozen=True)
class AboveThreshold(UnmaskRule):
    """Fill every mask whose candidate is at least this likely, and the likeliest in any case.

    Fast-dLLM (Wu et al., 2025): n tokens each above 1 - e with (n + 1) e <= 1 are what greedy
    decoding one by one would write. A threshold of 1 fills one token a pass. At least, as in Fast-dLLM;
    DAEDAL and rho-EOS ask for more than the threshold.

    `pace` caps the tokens per pass, on average: what a pass leaves of its share, later ones may use.
    Fast-dLLM's Dream sampler without a cache has such a cap, N / steps, which its paper does not
    mention; where N / steps is no whole number it drops the fraction and leaves masks, ours does not.
    """

    name: ClassVar[str] = "threshold"
    cost_summary: ClassVar[str] = "fewer passes the surer the model is; a token a pass at worst"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    threshold: float = 0.9
    max_tokens_per_step: float | None = None

    def __post_init__(self) -> None:
        check_number("AboveThreshold", "threshold", self.threshold, above=0, maximum=1)
        if self.max_tokens_per_step is not None:
            check_number("AboveThreshold", "max_tokens_per_step", self.max_tokens_per_step, minimum=1)

    traits = UnmaskTraits(capturable=True)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        confidence = prediction.confidence.masked_fill(~open, -torch.inf)
        one = open.any(-1).long()
        # float32 calls certain what is a ten-millionth short of it.
        passing = (confidence >= self.threshold) & (self.threshold < 1)
        if self.max_tokens_per_step is not None:
            remaining = open.sum(-1)
            share = (
                self.max_tokens_per_step * (clock.in_window + 1).double() + 1e-9
            ).long()  # 3 x 0.1 is a hair off
            left = share - (clock.masks_at_start - remaining)
            passing = passing & topk_mask(confidence, left)
        return topk_mask(confidence, one) | passing, state


@dataclass(frozen=True)
class Factor(UnmaskRule):
    """Fill the n likeliest candidates as long as the n-th is at least 1 - factor / (n + 1) likely.

    The bar rises with every token filled beside the others, as the bound behind AboveThreshold asks.
    The first always passes. Fast-dLLM's loop fills all candidates when only the last one fails; ours
    stops before it.
    """

    name: ClassVar[str] = "factor"
    cost_summary: ClassVar[str] = "fewer passes the surer the model is; a token a pass at worst"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025), later versions"

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("Factor", "factor", self.factor, above=0)

    traits = UnmaskTraits(capturable=True)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        confidence = prediction.confidence.masked_fill(~open, -torch.inf)
        order = rank_columns(confidence)
        ordered = confidence.gather(1, order)
        bar = 1 - self.factor / torch.arange(2, ordered.shape[1] + 2, device=order.device)
        passing = (ordered >= bar).long().cumprod(-1).sum(-1)
        count = torch.maximum(passing, open.any(-1).long())
        return first_ranked(order, count) & open, state


@dataclass(frozen=True)
class LeftmostFirst(UnmaskRule):
    """When a block opens, fill its leftmost mask and nothing else; from then on follow `unmask`.

    What Fast-dLLM's block files do on Dream (Wu et al., 2025), however unsure the model is of that
    token. The output before a block predicts its first column, so with a cache that column is out of
    reach once the full pass is over; filling it at once avoids the question. We do not need it: a
    pass that reads the first column recomputes the one before it, one column more. Use it to repeat
    their numbers; a schedule below it still counts the block's first pass, as theirs does.
    """

    name: ClassVar[str] = "leftmost-first"
    cost_summary: ClassVar[str] = "about one pass more per block"
    source: ClassVar[str] = "Fast-dLLM on Dream (Wu et al., 2025)"

    unmask: UnmaskRule = AboveThreshold()

    def __post_init__(self) -> None:
        check_type(
            "LeftmostFirst",
            "unmask",
            self.unmask,
            UnmaskRule,
            "an unmask rule, such as AboveThreshold(0.9)",
        )
        if isinstance(self.unmask, LeftmostFirst):
            raise SettingError(
                "LeftmostFirst was put around LeftmostFirst, which does nothing more: give the rule inside"
            )

    @property
    def traits(self) -> UnmaskTraits:
        return self.unmask.traits

    def max_passes(self, masks: int) -> int | None:
        # A schedule that fills several in a pass is late by what its first pass left.
        passes = self.unmask.max_passes(masks)
        return passes if passes is None or passes >= masks else passes + 1

    def initial_state(self, canvas: Canvas) -> State:
        return self.unmask.initial_state(canvas)

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        return self.unmask.visible_columns(canvas, clock, state)

    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        leftmost = open & (open.cumsum(-1) == 1)
        later, state = self.unmask.choose(prediction, open, clock, state)
        return leftmost.where(clock.block_start[:, None], later), state
