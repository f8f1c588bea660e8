"""The transformer on packed columns: the columns of all rows side by side, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastword.canvas.columns import cached_arange, first_true, locate, pack_indices
from lastword.models.kernels.attention import PackedRows, attend
from lastword.models.kernels.float8 import Float8Rows, UnscaledProduct, float8_matmul, quantize_rows
from lastword.models.kernels.fused import add_residual, add_rms_norm, rotate_and_store, silu_mul
from lastword.models.layers import BidirectionalTransformer, Block, rotary_cos_sin, rotary_frequencies, share_input
from lastword.models.quantize import Float8Linear, Int8Linear
from lastword.models.storage import RowKVStorage

# The gate and up outputs of an MLP are six times as wide as a hidden state, so they are computed in parts of at most
# this many numbers: 128 MB in bf16.
MAX_MLP_NUMBERS = 2**26


@dataclass(frozen=True, eq=False)
class Packing:
    """N columns of B rows, packed side by side as input of one forward pass."""

    tokens: Tensor  # [N]
    positions: Tensor  # [N] in their rows
    rows: PackedRows
    read: Tensor  # [B, S] indices into the N columns of those that are read

    @classmethod
    def from_columns(
        cls,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        valid: Tensor | None,  # [B, L], without gaps in a row if there is a storage; None: all
        columns: Tensor | None,  # [B, R], sorted; None: all
        storage: RowKVStorage | None,
    ) -> Packing:
        """Pack `columns` without repeated ones, or all valid columns.

        The host waits for the device to count them, unless every row has the same number of columns
        (`storage.uniform`, or neither `columns` nor `valid`): only then can the pass be captured as a CUDA graph.
        """
        if storage is not None and columns is not None and storage.uniform:
            return cls._uniform(tokens, read, valid, columns, storage)
        (count, width), device = tokens.shape, tokens.device
        index = torch.arange(width, device=device).expand(count, -1) if columns is None else columns
        longest, positions = index.shape[1], index
        if valid is not None:
            first = first_true(valid).clamp(max=width - 1)[:, None]
            # Shifted logits are read one column before; for a row's first column that would be padding.
            read = torch.maximum(read, first)
            positions = (index - first).clamp(min=0)
            if storage is None:  # only then may rows have gaps
                positions = (valid.cumsum(-1) - 1).clamp(min=0).gather(1, index)
        read = read if columns is None else locate(columns, read)
        read = read + torch.arange(0, count * longest, longest, device=device)[:, None]
        starts = torch.arange(0, count * longest + 1, longest, device=device)
        offsets = None if storage is None else storage.offsets(device)
        slots = index if offsets is None else offsets[:, None] + index
        flat = [tokens.gather(1, index).flatten(), positions.flatten(), slots.flatten()]
        distinct = valid if columns is None else F.pad(columns.diff() != 0, (1, 0), value=True)
        if distinct is not None:
            (packed,) = distinct.flatten().nonzero(as_tuple=True)
            flat = [numbers[packed] for numbers in flat]
            read = (distinct.flatten().cumsum(0) - 1)[read]
            starts = F.pad(distinct.sum(-1).cumsum(0), (1, 0))
        span = None
        if offsets is None:
            flat[2] = torch.arange(len(flat[2]), device=device)
            key_starts, keys = starts, starts.diff()
            span = slice(0, len(flat[2])) if count == 1 else None
        elif valid is None:
            key_starts, keys = F.pad(offsets, (0, 1)), torch.full_like(offsets, width)
        else:
            key_starts, keys = F.pad(offsets + first[:, 0], (0, 1)), valid.sum(-1)
        rows = PackedRows(starts.int(), key_starts.int(), keys.int(), longest, width, flat[2], span)
        return cls(flat[0], flat[1], rows, read)

    @classmethod
    def with_capacity(cls, tokens: Tensor, read: Tensor, valid: Tensor, capacity: int) -> Packing:
        """Pack all valid columns, at most `capacity`, without host synchronisation.

        Unused capacity is filled with copies of the first column, which no row attends to.
        """
        (count, width), device = tokens.shape, tokens.device
        rank, packed = pack_indices(valid.flatten(), capacity)
        first = first_true(valid).clamp(max=width - 1)[:, None]
        positions = (cached_arange(width, device) - first).clamp(min=0).flatten()
        read = torch.maximum(read, first) + cached_arange(count, device)[:, None] * width
        counts = valid.sum(-1, dtype=torch.int32)
        starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        rows = PackedRows(starts, starts, counts, width, width, cached_arange(capacity, device))
        return cls(tokens.flatten()[packed], positions[packed], rows, rank[read])

    @classmethod
    def _uniform(
        cls, tokens: Tensor, read: Tensor, valid: Tensor | None, columns: Tensor, storage: RowKVStorage
    ) -> Packing:
        """Pack the same number of adjacent columns in every row, with ten small kernels and no host synchronisation."""
        (count, width), size = tokens.shape, columns.shape[1]
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        offsets, column = storage.offsets(tokens.device), storage.all_rows.arange(width, 1, columns)
        starts = storage.all_rows.arange(count + 1, size, columns, torch.int32)
        # With a Python number, `where` would launch one more kernel.
        end = storage.all_rows.arange(1, 1, columns, start=width - 1)
        first = torch.where(valid, column, end).amin(-1, keepdim=True)
        key_starts = torch.empty_like(starts)
        torch.add(offsets, first[:, 0], out=key_starts[:-1])
        # Counted back from a row's last column, since shifted logits may repeat the first one.
        last = storage.all_rows.arange(count, size, columns, start=size - 1)[:, None]
        read = torch.maximum(read, first) - columns[:, -1:] + last
        slots = (offsets[:, None] + columns).flatten()
        keys = valid.sum(-1, dtype=torch.int32)
        rows = PackedRows(starts, key_starts, keys, size, width, slots, storage.span)
        return cls(tokens.gather(1, columns).flatten(), (columns - first).flatten(), rows, read)


class FusedLinear:
    """Linear layers with the same input, computed as one matrix product; their weights become views of one tensor.

    Layers in int8 keep their weights, which have the layout of oneDNN, and share the quantized input.
    """

    def __init__(self, *linears: Any) -> None:
        self.int8 = linears if isinstance(linears[0], Int8Linear) else ()
        self.outputs = sum(len(linear.scale if self.int8 else linear.weight) for linear in linears)
        self.float8, self.late_bias = isinstance(linears[0], Float8Linear), None
        if self.int8:
            return
        self.weight = _share_memory(linears, "weight")
        self.scale = _share_memory(linears, "scale") if self.float8 else None
        self.bias = None if linears[0].bias is None else _share_memory(linears, "bias")
        if self.float8:
            self.late_bias = self.bias  # added by the next kernel, after the scales

    def __call__(self, x: Tensor | Float8Rows) -> Any:  # [N, I] -> [N, O]
        """Return the outputs side by side, an `UnscaledProduct` in fp8, or a list of the outputs of int8 layers."""
        if self.int8:
            shared = share_input(x, self.int8[0])  # type: ignore[arg-type]
            outputs = [linear(shared) for linear in self.int8]
            return outputs if len(outputs) > 1 else outputs[0]
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)  # type: ignore[arg-type]
        x = quantize_rows(x) if isinstance(x, Tensor) else x
        return float8_matmul(x, self.weight, self.scale)


class FusedBlock:
    """A `Block` whose seven linear layers are fused into four matrix products."""

    def __init__(self, block: Block) -> None:
        attention, mlp = block.attention, block.mlp
        self.attention_norm, self.mlp_norm = block.attention_norm, block.mlp_norm
        self._query = attention.query
        self.qkv = FusedLinear(attention.query, attention.key, attention.value)
        self.out = FusedLinear(attention.out)
        self.gate_up = FusedLinear(mlp.gate, mlp.up)
        self.down = FusedLinear(mlp.down)

    @property
    def current(self) -> bool:
        """Return whether the layer still has the weights that were fused."""
        return bool(self.qkv.int8) or self.qkv.weight.data_ptr() == self._query.weight.data_ptr()


class PackedNetwork:
    """A `BidirectionalTransformer` for packed columns, with the same weights and without host synchronisation.

    A few fused kernels run between the matrix products, and attention reads keys and values from the storage without a
    copy. In fp8, the kernel after a product applies its scales, and the kernel before a product quantizes its input.
    """

    @torch.no_grad()
    def __init__(self, network: BidirectionalTransformer) -> None:
        self.config, self.embedding, self.norm = network.config, network.embedding, network.norm
        self.blocks = [FusedBlock(block) for block in network.blocks]  # type: ignore[arg-type]
        self._frequencies = rotary_frequencies(self.config, network.embedding.weight.device)

    @classmethod
    def of(cls, network: BidirectionalTransformer) -> PackedNetwork:
        """Return the packed form of a network, which is cached in it and rebuilt if weights were moved or replaced."""
        packed = network.packed
        if not isinstance(packed, cls) or not all(block.current for block in packed.blocks):
            network.packed = None  # free its memory first
            network.packed = packed = cls(network)
        return packed

    def hidden(self, packing: Packing, storage: RowKVStorage | None) -> Tensor:  # [N, W]
        """Return the hidden states of the packed columns before the final norm."""
        config, rows, eps = self.config, packing.rows, self.config.norm_eps
        x: Tensor = self.embedding(packing.tokens)
        cos, sin = rotary_cos_sin(packing.positions, self._frequencies, config, x.dtype)
        like = x.new_empty(len(x), config.num_kv_heads, config.head_dim)
        keys_values = (like, torch.empty_like(like))
        delta: Tensor | UnscaledProduct | None = None
        for layer, block in enumerate(self.blocks):
            if storage is not None:
                keys_values = storage.all_rows.layer(layer, config.num_kv_heads, like)
            x, normed = add_rms_norm(x, delta, block.attention_norm.weight, eps, quantize=block.qkv.float8)
            rotary = (cos, sin, rows.slots, *keys_values, config.num_heads, block.qkv.late_bias)
            query = rotate_and_store(block.qkv(normed), *rotary)
            delta = block.out(attend(query, *keys_values, rows).flatten(1))
            x, normed = add_rms_norm(x, delta, block.mlp_norm.weight, eps, quantize=block.gate_up.float8)
            del query, delta  # frees 16 MB each in a probe
            parts = _split_for_mlp(normed, block.gate_up)
            delta = _join([block.down(silu_mul(block.gate_up(part), x.dtype)) for part in parts])
        return add_residual(x, delta, self.norm.weight, eps)


def _split_for_mlp(x: Tensor | Float8Rows, product: FusedLinear) -> list[Tensor] | list[Float8Rows]:
    """Split columns into equal parts, each with at most about `MAX_MLP_NUMBERS` outputs of the product."""
    count = len(x if isinstance(x, Tensor) else x.values)
    parts = max(1, -(-count * product.outputs // MAX_MLP_NUMBERS))
    if isinstance(x, Tensor):
        return [*x.chunk(parts)]
    return [Float8Rows(*part) for part in zip(x.values.chunk(parts), x.scale.chunk(parts))]


def _join(parts: list[Tensor | UnscaledProduct]) -> Tensor | UnscaledProduct:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    values, scales, (column_scale, *_) = zip(*parts)
    return UnscaledProduct(torch.cat(values), torch.cat(scales), column_scale)


def _share_memory(linears: tuple[nn.Module, ...], name: str) -> Tensor:
    """Return one parameter of all linear layers concatenated; their own parameters become views of it."""
    parameters: list[nn.Parameter] = [getattr(linear, name) for linear in linears]
    if len(parameters) == 1:
        return parameters[0].data
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(p) for p in parameters])):
        parameter.data = part
    return whole
