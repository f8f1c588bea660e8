"""Token probabilities from logits, in float64 without a float64 copy of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.checks import check_sequence, check_whole
from lastword.errors import WrongTypeError

NUMBERS_AT_ONCE = 2**23  # 64 MB of float64


def token_probabilities(
    logits: Float[Tensor, "*batch V"], ids: Sequence[int]
) -> Float[Tensor, "*batch N"]:
    """softmax(logits) at `ids`, in float64, on the CPU.

    Only the normaliser needs the whole vocabulary, so it is summed a few columns at a time: 1024
    columns of a 126k vocabulary would need 1 GB in float64, and this needs 64 MB. The CPU waits for
    the device once, at the end: a wait per part made the probe of a large batch slower than its pass.
    """
    is_tensor = isinstance(logits, Tensor)
    if not is_tensor or not logits.is_floating_point() or not logits.ndim:
        raise WrongTypeError(
            f"logits of {logits.dtype if is_tensor else type(logits).__name__} were given; they must be a "
            "tensor of floating-point numbers [..., vocabulary]"
        )
    if not isinstance(ids, (list, tuple)):
        check_sequence("token_probabilities", "ids", ids, "a list of token ids")
    for one in ids:
        check_whole("token_probabilities", "ids", one, least=0, most=logits.shape[-1] - 1)
    flat = logits.reshape(-1, logits.shape[-1])
    columns = torch.tensor(list(ids), dtype=torch.long, device=logits.device)
    # Apple's GPU has no float64; there the normaliser is summed in float32.
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    parts = []
    for chunk in torch.split(flat, max(1, NUMBERS_AT_ONCE // flat.shape[-1])):
        chunk = chunk.to(wide)
        normaliser = chunk.logsumexp(-1, keepdim=True)
        parts.append((chunk[:, columns] - normaliser).exp())
    picked = torch.cat(parts).cpu().double() if parts else torch.empty(0, len(columns)).double()
    return picked.reshape(*logits.shape[:-1], len(columns))
