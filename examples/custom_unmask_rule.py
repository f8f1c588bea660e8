"""Write your own unmask rule: fill masks from the left while their confidence is high.

python examples/custom_unmask_rule.py

`choose` is called once per forward pass with all rows of the batch and returns the masks to fill. It must
choose at least one mask in every row that has any. docs/use/extend.md explains the contract.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import lastword
from lastword.canvas.canvas import Clock, State
from lastword.decoding.prediction import Prediction
from lastword.policies.unmask.rule import UnmaskRule


@lastword.register  # recipes, records and the command line can then refer to it by name
@dataclass(frozen=True)
class ConfidentRun(UnmaskRule):
    """Fill the leftmost mask and the masks after it, up to the first with a confidence below `threshold`."""

    name: ClassVar[str] = "confident-run"
    threshold: float = 0.9

    def choose(self, prediction: Prediction, open: Tensor, clock: Clock, state: State) -> tuple[Tensor, State]:
        """Choose among the open masks. Tensors are [rows, slots], with the slots from left to right."""
        leftmost = open & (open.cumsum(-1) == 1)
        confident = leftmost | (prediction.confidence >= self.threshold)
        unbroken = (confident | ~open).cumprod(-1).bool()
        return open & unbroken, state  # this rule keeps no state


model = lastword.load("tiny-llada-base")
prompt = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
for rule in (lastword.MostConfident(), lastword.AboveThreshold(0.9), ConfidentRun(0.9)):
    answer = lastword.generate(model, prompt, recipe="fast", unmask=rule)
    print(f"{rule.name}: {answer.cost.forward_passes} forward passes\n{answer.text}\n")
