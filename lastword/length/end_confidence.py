"""How sure a model is that the canvas has room to spare: the signal of DAEDAL."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lastword.passes.prediction import Prediction


def end_confidence(prediction: Prediction, count: int) -> Float[Tensor, "B"]:
    """Mean end-token probability of the last `count` slots at which the model would end.

    Slots where another token is likelier are passed over, written slots count as well, and slots that
    are missing to `count` count as 0. This is DAEDAL's code; its paper says "the last `count` slots".
    Needs logits of the whole answer.
    """
    end = prediction.canvas.ids.end
    ending = (prediction.likeliest == end) & prediction.columns.read
    from_the_right = ending.flip(-1).cumsum(-1).flip(-1)
    counted = ending & (from_the_right <= count)
    return prediction.probability_of(end).masked_fill(~counted, 0).sum(-1) / count
