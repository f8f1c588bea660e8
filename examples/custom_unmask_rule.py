"""A rule of your own for which masks to fill: here, from the left for as long as the model is sure.

python examples/custom_unmask_rule.py

The contract is in docs/use/extend.md: `choose` is asked once a pass, for all rows, and returns which of
the open masks to fill. It must fill at least one of every row that has any.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import lastword
from lastword.canvas.canvas import Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule


@lastword.register  # recipes and records can then name it
@dataclass(frozen=True)
class SureRun(UnmaskRule):
    """Fill the leftmost mask, and those that follow it until one is less than `threshold` likely."""

    name: ClassVar[str] = "sure-run"
    threshold: float = 0.9

    def choose(self, prediction: Prediction, open: Tensor, clock: Clock, state: State) -> tuple[Tensor, State]:
        """Everything here is [rows, columns read], the columns from left to right."""
        leftmost = open & (open.cumsum(-1) == 1)
        sure = leftmost | (prediction.confidence >= self.threshold)
        unbroken = (sure | ~open).cumprod(-1).bool()
        return open & unbroken, state  # nothing to remember: the state goes back as it came


model = lastword.load("tiny-llada-base")
question = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
for rule in (lastword.MostConfident(), lastword.AboveThreshold(0.9), SureRun(0.9)):
    answer = lastword.generate(model, question, recipe="fast", unmask=rule)
    print(f"{rule.name}: {answer.cost.forward_passes} passes\n{answer.text}\n")
