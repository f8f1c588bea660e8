"""Tensor parallel: which part of every weight is whose, and how a layer is put together again.

Queries, keys, values, gate and up are split by their outputs; what follows them, out and down, by its inputs,
and the ranks' sums are added. So a rank has some of the heads, in its weights and in its memory of keys and
values. Embedding and head are split by the vocabulary. Norms are whole in every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lastword.errors import CheckpointError
from lastword.models.layers import BidirectionalTransformer, TransformerConfig
from lastword.models.ranks import Ranks

BY_OUTPUTS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
BY_INPUTS = ("attention.out", "mlp.down")
WORDS = {
    "num_heads": "heads",
    "num_kv_heads": "key-value heads",
    "intermediate_size": "columns in its MLP",
}


def check_shape(shape: TransformerConfig, count: int, source: object) -> None:
    """Refuse a model that cannot be cut into as many equal parts; its vocabulary may be cut unequally."""
    for name, words in WORDS.items():
        if (size := getattr(shape, name)) % count:
            raise CheckpointError(
                f"{source} has {size} {words}, which {count} ranks cannot share evenly; give parallel= a "
                f"number that divides {shape.num_heads} heads, {shape.num_kv_heads} key-value heads and the "
                f"{shape.intermediate_size} columns of the MLP"
            )


def split(network: BidirectionalTransformer, ranks: Ranks) -> None:
    """Let every rank hold its part of a network that is still on the meta device."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        **{f"blocks.*.{name}": ColwiseParallel() for name in BY_OUTPUTS},
        **{f"blocks.*.{name}": RowwiseParallel() for name in BY_INPUTS},
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(network, ranks.mesh, plan, src_data_rank=None)
    if network.shape.tied_head:
        network.head.weight = network.embedding.weight


def own_part(parameter: Tensor, ranks: Ranks) -> tuple[slice, ...]:
    """What this rank reads of a weight; empty where it is whole in every rank."""
    dim = _split_dim(parameter)
    if dim is None:
        return ()
    return (*(slice(None),) * dim, share(parameter.shape[dim], ranks.rank, ranks.count))


def share(whole: int, rank: int, count: int) -> slice:
    """A rank's share of so many: equal ones, but for the last ranks where they do not come out even."""
    size = -(-whole // count)
    first = min(rank * size, whole)
    return slice(first, min(first + size, whole))


def placed(own: Tensor, parameter: Any, ranks: Ranks) -> Tensor:
    """A part that was read, as the split parameter it belongs to."""
    if _split_dim(parameter) is None:
        return own
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        own, ranks.mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )


def beginnings(tensors: Mapping[str, Tensor], count: int, ranks: Ranks) -> dict[str, Tensor]:
    """The first numbers of every weight as if it were whole here; all ranks must ask."""
    own = {}
    for name, tensor in tensors.items():
        rows = -(-count // max(1, tensor.numel() // max(1, len(tensor))))
        own[name] = as_local(tensor)[:rows].cpu()
    every, whole = ranks.gathered(own), {}
    for name, tensor in tensors.items():
        dim = _split_dim(tensor)
        parts = [said[name] for said in every]
        whole[name] = (own[name] if dim is None else torch.cat(parts, dim)).flatten()[:count]
    return whole


def parameter_bytes(module: nn.Module) -> int:
    """The memory this process needs for a module's parameters; tied ones count once."""
    return sum(own.numel() * own.element_size() for own in map(as_local, module.parameters()))


def as_local(tensor: Any) -> Tensor:
    """What this rank has of a tensor, as a plain one; what others still send is waited for."""
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.wait() if hasattr(own, "wait") else own


def _split_dim(tensor: Any) -> int | None:
    """The dimension a tensor is split along; None: it is whole."""
    placements = getattr(tensor, "placements", None)
    return None if placements is None else getattr(placements[0], "dim", None)
