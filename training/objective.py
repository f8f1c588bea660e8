"""The training loss: cross entropy of masked tokens, divided by their mask probability (LLaDA, eq. 3).

If tokens are masked independently, most results of a calculation are visible elsewhere in the answer, or its operands
are masked as well. A small model then learns to copy rather than to compute. In a share of the rows (`ahead_of`), all
or most tokens after a cut are masked instead. This resembles the state of a canvas during confident decoding.

The only difference between the model families is whether outputs are shifted (Dream). Targets and weights are shifted
when a batch is made, so the network needs no flag for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.models.layers import BidirectionalTransformer


@dataclass(frozen=True)
class Batch:
    """The batch of a step. The loss is the weighted sum of cross entropies."""

    inputs: Tensor  # [B, W] token ids, with masks
    targets: Tensor  # [B, W] the token to predict at each column
    weights: Tensor  # [B, W] weight of the cross entropy at each column; 0: ignored
    causal: bool = False


def ratios(rows: int, blank: float, eps: float, generator: torch.Generator) -> Tensor:  # [B, 1] in [eps, 1]
    """Return the mask probability of each row: uniform, and evenly spread over the batch.

    A regular grid with one random offset gives every batch all noise levels, so the loss varies less than with
    independent draws. `blank` is the weight of additional rows that are masked completely.
    """
    device = generator.device
    offset = torch.rand((), generator=generator, device=device)
    time = (torch.arange(rows, device=device) / rows + offset) % 1
    time = (time * (1 + blank)).clamp(max=1)
    return ((1 - eps) * time + eps)[:, None]


def masked(
    tokens: Tensor,  # [B, W]
    fixed: Tensor,  # [B, W] never masked
    content: Tensor,  # [B, W] columns that count in the average; end tokens that fill a row do not
    chance: Tensor,  # [B, 1] mask probability
    mask: int,
    generator: torch.Generator,
    *,
    shifted: bool,
    started: Tensor | None = None,  # [B, W] distance from the cut of the row
    ahead_of: Tensor | None = None,  # [B, 1] rows that are masked after their cut
    reach: float = 16.0,
) -> Batch:
    """Mask tokens that are not fixed with the probability of their row; return a batch whose loss is per content token.

    The tokens that fill a wide canvas have a loss, but do not count in the average; otherwise they would reduce the
    weight of the answer. Rows of `ahead_of` are masked after their cut instead (`started` >= 0), and in half of them a
    few later tokens stay visible. Tokens soon after the cut are predictable and have the largest weights. The total
    weight of a row is the same as without a cut.
    """
    if shifted:  # no column precedes the first one, so its token cannot be predicted
        fixed = fixed | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
    draw = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    hidden = (draw < chance) & ~fixed
    counted = (content & ~fixed).sum()
    weights = hidden / (chance * counted)
    if started is not None and ahead_of is not None:
        later = (0.5 + chance).clamp(max=1)  # mask probability after the cut
        cut = (started >= 0) & ~fixed
        near = torch.where(cut, torch.exp(-started.clamp(min=0) / reach), 0.0)
        share = (content & ~fixed).sum(1, keepdim=True) / counted
        near = near * share / near.sum(1, keepdim=True).clamp(min=1e-6)
        kept = cut & ((draw < later) | (started < 1))  # the column at the cut is always masked
        hidden = torch.where(ahead_of, kept, hidden)
        weights = torch.where(ahead_of, near * kept, weights)
    inputs = tokens.masked_fill(hidden, mask)
    return Batch(inputs, *(ahead(tokens, weights) if shifted else (tokens, weights)))


def next_token(tokens: Tensor, content: Tensor) -> Batch:
    """Return the autoregressive batch of the same rows: every content token is predicted from those before it."""
    weights = content[:, 1:].float()
    weights = F.pad(weights, (1, 0)) / weights.sum()
    return Batch(tokens, *ahead(tokens, weights), causal=True)


def ahead(tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets and weights shifted one column left, because the output at column i predicts column i + 1."""
    return F.pad(tokens[:, 1:], (0, 1)), F.pad(weights[:, 1:], (0, 1))


def loss(network: BidirectionalTransformer, inputs: Tensor, targets: Tensor, weights: Tensor, causal: bool) -> Tensor:
    """Return the weighted cross entropy in float32.

    Logits of all columns are computed, because shapes would depend on the data if masked columns were selected first.
    """
    logits = network.head(network.norm(network.hidden(inputs, causal=causal)))
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()
