"""One forward pass: how it is run, what it says, how its logits become tokens."""

from lastword.passes.dice import Dice as Dice
from lastword.passes.hooks import Hooks as Hooks
from lastword.passes.sampling import Sampling as Sampling
