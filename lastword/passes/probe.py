"""ModelProbe: one pass over a prompt and masks, for a length policy to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.cost import Cost
from lastword.canvas.ids import PromptIds
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.forward import Forward
from lastword.passes.prediction import Prediction
from lastword.passes.sampling import Sampling


class ModelProbe:
    """One forward pass over each prompt followed by masks, for a length policy to read.

    It reads the plain model: guidance, hooks and end-token controls shape the answer, not the
    model's belief about its length. `most_passes` and `guided` are those of the decoding to come.
    """

    def __init__(
        self,
        model: MaskPredictor,
        prompts: Sequence[PromptIds],
        *,
        most_passes: Callable[[int], int] = lambda slots: slots,
        guided: bool = False,
        beyond_positions: bool = False,
    ) -> None:
        self.rows = len(prompts)
        self._prompts, self._ids = prompts, model.ids
        self._most_passes, self._branches = most_passes, 2 if guided else 1
        dice = Dice([0] * self.rows)  # the plain model's likeliest token: nothing is drawn
        self._forward = Forward(model, Sampling(), dice, beyond_positions=beyond_positions)
        self.cost = Cost.nothing(self.rows)

    def __call__(
        self, slots: int | Int[Tensor, "B"], asking: Bool[Tensor, "B"] | None = None
    ) -> Prediction:
        canvas = self._blank(slots)
        read = canvas.answer if asking is None else canvas.answer & asking[:, None]
        prediction, self.cost = self._forward(canvas, read, self.cost)
        return prediction

    def most(self, slots: Int[Tensor, "B"]) -> Cost:
        passes = torch.tensor([self._most_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        columns = passes * width * self._branches
        return Cost(passes, columns, columns * width)

    def _blank(self, slots: int | Int[Tensor, "B"]) -> Canvas:
        horizon = torch.full((self.rows,), slots) if isinstance(slots, int) else slots
        return Canvas.blank(self._prompts, horizon, self._ids)
