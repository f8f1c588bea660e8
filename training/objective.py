"""The loss: masked tokens, weighted by one over the chance of being masked (LLaDA, eq. 3).

Tokens masked independently leave copies of most results in sight, and where they do not, the
operands are gone too: a small model learns to copy and hardly to compute. So a share of the rows is
masked from a column on (`ahead_of`), which is the state confident decoding is in most of the time.

Everything about a model family that matters here is one bit: whether outputs are shifted. It is
paid when targets are laid out, so the network sees inputs, targets and weights and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lastword.models.layers import BidirectionalTransformer


@dataclass(frozen=True)
class Batch:
    """The batch of a step. The loss is the sum of weight x cross entropy."""

    inputs: Tensor  # [B, W] token ids, masks among them
    targets: Tensor  # [B, W] what the output at each column should say
    weights: Tensor  # [B, W] zero where the output does not count
    causal: bool = False


def ratios(rows: int, blank: float, eps: float, generator: torch.Generator) -> Tensor:  # [B, 1] in [eps, 1]
    """Each row's chance of masking a token: uniform, spread evenly over the batch.

    One random offset shifts a regular grid, so every batch holds every level of noise and the
    loss varies less than with independent draws. `blank` adds rows that are masked completely.
    """
    device = generator.device
    offset = torch.rand((), generator=generator, device=device)
    time = (torch.arange(rows, device=device) / rows + offset) % 1
    time = (time * (1 + blank)).clamp(max=1)
    return ((1 - eps) * time + eps)[:, None]


def masked(
    tokens: Tensor,  # [B, W]
    fixed: Tensor,  # [B, W] never masked
    content: Tensor,  # [B, W] counted when the loss is averaged; fill is learnt but not counted
    chance: Tensor,  # [B, 1]
    mask: int,
    generator: torch.Generator,
    *,
    shifted: bool,
    started: Tensor | None = None,  # [B, W] columns since the cut of a row masked from there on
    ahead_of: Tensor | None = None,  # [B, 1] which rows those are
    reach: float = 16.0,
) -> Batch:
    """Mask each free token with its row's chance; the loss is per token of content.

    Without the distinction a wide canvas, nearly all of it fill, would dilute its own answer.
    Rows of `ahead_of` are masked from their cut on instead (`started` >= 0), half of them with a
    few later tokens left in sight. What comes soon after a cut can be known and weighs most; the
    row as a whole weighs what its content would weigh without it.
    """
    if shifted:  # nothing stands before the first column, so nothing can predict it
        fixed = fixed | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
    draw = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    hidden = (draw < chance) & ~fixed
    counted = (content & ~fixed).sum()
    weights = hidden / (chance * counted)
    if started is not None and ahead_of is not None:
        later = (0.5 + chance).clamp(max=1)  # of masking a token behind the cut
        cut = (started >= 0) & ~fixed
        near = torch.where(cut, torch.exp(-started.clamp(min=0) / reach), 0.0)
        share = (content & ~fixed).sum(1, keepdim=True) / counted
        near = near * share / near.sum(1, keepdim=True).clamp(min=1e-6)
        kept = cut & ((draw < later) | (started < 1))  # the column at the cut is always asked for
        hidden = torch.where(ahead_of, kept, hidden)
        weights = torch.where(ahead_of, near * kept, weights)
    inputs = tokens.masked_fill(hidden, mask)
    return Batch(inputs, *(ahead(tokens, weights) if shifted else (tokens, weights)))


def next_token(tokens: Tensor, content: Tensor) -> Batch:
    """The autoregressive task on the same rows: every token of content from those before it."""
    weights = content[:, 1:].float()
    weights = F.pad(weights, (1, 0)) / weights.sum()
    return Batch(tokens, *ahead(tokens, weights), causal=True)


def ahead(tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Targets and weights moved one column left: the output at column i speaks for i + 1."""
    return F.pad(tokens[:, 1:], (0, 1)), F.pad(weights[:, 1:], (0, 1))


def loss(network: BidirectionalTransformer, inputs: Tensor, targets: Tensor, weights: Tensor, causal: bool) -> Tensor:
    """Weighted cross entropy in float32.

    The head runs on every column: picking the masked ones first would make shapes depend on data.
    """
    logits = network.head(network.norm(network.hidden(inputs, causal=causal)))
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()
