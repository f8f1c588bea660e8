"""From logits to the end-token probability at every position: the hazard's raw material."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

COLUMNS_AT_ONCE = 64


def token_probabilities(
    logits: Float[Tensor, "*batch V"], ids: Sequence[int]
) -> Float[Tensor, "*batch N"]:
    """softmax(logits) at `ids`, in float64, on the CPU.

    Only the normaliser needs the whole vocabulary, so it is summed a few positions at a time: 1024
    positions of a 126k vocabulary would need 1 GB in float64, and this needs 64 MB.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    columns = torch.tensor(list(ids), dtype=torch.long, device=logits.device)
    # Apple's GPU has no float64; there the normaliser is summed in float32.
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    parts = []
    for chunk in torch.split(flat, COLUMNS_AT_ONCE):
        chunk = chunk.to(wide)
        normaliser = chunk.logsumexp(-1, keepdim=True)
        parts.append((chunk[:, columns] - normaliser).exp().cpu().double())
    picked = torch.cat(parts) if parts else torch.empty(0, len(columns), dtype=torch.float64)
    return picked.reshape(*logits.shape[:-1], len(columns))
