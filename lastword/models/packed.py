"""Run a network on packed rows without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastword.canvas.columns import cached_arange, first_true, locate, pack_indices
from lastword.models.kernels.attention import PackedRows, attend
from lastword.models.kernels.float8 import Quantised, Raw, multiply, quantise
from lastword.models.kernels.gate import gated
from lastword.models.kernels.norm import add_norm
from lastword.models.kernels.rotary import rotate_and_store
from lastword.models.layers import BidirectionalTransformer, Block, at_least_float32
from lastword.models.quantize import Float8Linear
from lastword.models.storage import RowKVStorage


@dataclass(frozen=True, eq=False)
class Packing:
    """N columns of B rows."""

    tokens: Tensor  # [N]
    positions: Tensor  # [N] within their rows
    rows: PackedRows
    where: Tensor  # [B, S] which of the N are read

    @classmethod
    def of(
        cls,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        valid: Tensor | None,  # [B, L], in each row side by side
        carried: Tensor | None,  # [B, R], sorted
        memory: RowKVStorage | None,
    ) -> Packing:
        """Pack what is carried and valid, each column once.

        That asks the device how many those are. Where every row carries as many (`memory.uniform`, or all
        columns and no `valid`) nothing is asked: such a pass can be captured.
        """
        if memory is not None and carried is not None and memory.uniform:
            return cls._uniform(tokens, read, valid, carried, memory)
        (count, width), device = tokens.shape, tokens.device
        every = torch.arange(width, device=device).expand(count, -1)
        columns = every if carried is None else carried
        most = columns.shape[1]
        positions, where = columns, read
        if valid is not None:
            first = first_true(valid).clamp(max=width - 1)[:, None]
            # What a family reads before a row's first column is not there: the column speaks for itself.
            where = torch.maximum(read, first)
            positions = (columns - first).clamp(min=0)
            if memory is None:  # which would have no place for gaps
                positions = (valid.cumsum(-1) - 1).clamp(min=0).gather(1, columns)
        where = where if carried is None else locate(carried, where)
        where = where + torch.arange(0, count * most, most, device=device)[:, None]
        starts = torch.arange(0, count * most + 1, most, device=device)
        base = None if memory is None else memory.base(device)
        slots = columns if base is None else base[:, None] + columns
        flat = [tokens.gather(1, columns).flatten(), positions.flatten(), slots.flatten()]
        kept = valid if carried is None else F.pad(carried.diff() != 0, (1, 0), value=True)
        if kept is not None:
            (picked,) = kept.flatten().nonzero(as_tuple=True)
            flat = [numbers[picked] for numbers in flat]
            where = (kept.flatten().cumsum(0) - 1)[where]
            starts = F.pad(kept.sum(-1).cumsum(0), (1, 0))
        own = None
        if base is None:
            flat[2] = torch.arange(len(flat[2]), device=device)
            key_starts, keys = starts, starts.diff()
            own = slice(0, len(flat[2])) if count == 1 else None
        elif valid is None:
            key_starts, keys = F.pad(base, (0, 1)), torch.full_like(base, width)
        else:
            key_starts, keys = F.pad(base + first[:, 0], (0, 1)), valid.sum(-1)
        rows = PackedRows(starts.int(), key_starts.int(), keys.int(), most, width, flat[2], own)
        return cls(flat[0], flat[1], rows, where)

    @classmethod
    def among(cls, tokens: Tensor, read: Tensor, valid: Tensor, most: int) -> Packing:
        """Pack all valid columns, of which there are no more than `most`; nothing is asked.

        What is left of the `most` repeats a column that no row looks at.
        """
        (count, width), device = tokens.shape, tokens.device
        packed, picked = pack_indices(valid.flatten(), most)
        first = first_true(valid).clamp(max=width - 1)[:, None]
        positions = (cached_arange(width, device) - first).clamp(min=0).flatten()
        where = torch.maximum(read, first) + cached_arange(count, device)[:, None] * width
        counts = valid.sum(-1, dtype=torch.int32)
        starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        rows = PackedRows(starts, starts, counts, width, width, cached_arange(most, device))
        return cls(tokens.flatten()[picked], positions[picked], rows, packed[where])

    @classmethod
    def _uniform(
        cls,
        tokens: Tensor,
        read: Tensor,
        valid: Tensor | None,
        columns: Tensor,
        memory: RowKVStorage,
    ) -> Packing:
        """The same where every row carries as many columns side by side, in ten small kernels."""
        (count, width), most = tokens.shape, columns.shape[1]
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        base, every = memory.base(tokens.device), memory.steps(width, 1, columns)
        starts = memory.steps(count + 1, most, columns, torch.int32)
        # A scalar would be a kernel of its own to make a tensor of it.
        end = memory.steps(1, 1, columns, first=width - 1)
        first = torch.where(valid, every, end).amin(-1, keepdim=True)
        key_starts = torch.empty_like(starts)
        torch.add(base, first[:, 0], out=key_starts[:-1])
        # Counted from a row's last column, since its first may be there twice (see Dream).
        last = memory.steps(count, most, columns, first=most - 1)[:, None]
        where = torch.maximum(read, first) - columns[:, -1:] + last
        slots = (base[:, None] + columns).flatten()
        keys = valid.sum(-1, dtype=torch.int32)
        rows = PackedRows(starts, key_starts, keys, most, width, slots, memory.own)
        return cls(tokens.gather(1, columns).flatten(), (columns - first).flatten(), rows, where)


# Gate and up are six times as wide as a state: they are made this many numbers at a time, 128 MB in bf16.
NUMBERS_AT_ONCE = 2**26


class Product:
    """Several products of one input as one; their weights become parts of a single tensor."""

    def __init__(self, *linears: nn.Module) -> None:
        self.float8 = isinstance(linears[0], Float8Linear)
        self.weight = _together(linears, "weight")
        self.scale = _together(linears, "scale") if self.float8 else None
        self.bias = None if linears[0].bias is None else _together(linears, "bias")

    def __call__(self, x: Tensor | Quantised) -> Tensor | Raw:  # [N, I] -> [N, O]
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)  # type: ignore[arg-type]
        x = quantise(x) if isinstance(x, Tensor) else x
        return multiply(x, self.weight, self.scale)


class Layer(NamedTuple):
    """One block's products."""

    block: Block
    qkv: Product
    out: Product
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, block: Block) -> Layer:
        attention, mlp = block.attention, block.mlp
        return cls(
            block,
            Product(attention.query, attention.key, attention.value),
            Product(attention.out),
            Product(mlp.gate, mlp.up),
            Product(mlp.down),
        )


class PackedNetwork:
    """A network's own weights, used on packed columns; nothing in a pass waits for the device.

    Norms, rotations and gates are kernels of their own and so is attention, which reads keys and values
    where the memory has them. In fp8 a kernel quantises what it writes for the next product, and multiplies
    the scales of the last one back into what it reads.
    """

    @torch.no_grad()
    def __init__(self, network: BidirectionalTransformer) -> None:
        self.shape, self.embedding, self.norm = network.shape, network.embedding, network.norm
        self.layers = [Layer.of(block) for block in network.blocks]  # type: ignore[arg-type]
        exponents = torch.arange(0, self.shape.head_width, 2, device=network.embedding.weight.device).float()
        self._frequencies = 1.0 / self.shape.rope_theta ** (exponents / self.shape.head_width)

    @classmethod
    def of(cls, network: BidirectionalTransformer) -> PackedNetwork:
        """The one that the network keeps. It goes where weights are moved, cast or quantised."""
        kept = network.packed
        if not isinstance(kept, cls) or not kept.current:
            network.packed = kept = None
            network.packed = kept = cls(network)
        return kept

    @property
    def current(self) -> bool:
        """Are these still the network's weights?"""
        return all(
            layer.qkv.weight.data_ptr() == layer.block.attention.query.weight.data_ptr()
            for layer in self.layers
        )

    def hidden(self, packing: Packing, memory: RowKVStorage | None) -> Tensor:  # [N, W]
        """States of the packed columns before the final norm."""
        shape, rows, eps = self.shape, packing.rows, self.shape.norm_eps
        x: Tensor = self.embedding(packing.tokens)
        cos, sin = self._rotation(packing.positions, x.dtype)
        like = x.new_empty(len(x), shape.num_kv_heads, shape.head_width)
        store = (like, torch.empty_like(like))
        delta: Tensor | Raw | None = None
        for number, (block, qkv, out, gate_up, down) in enumerate(self.layers):
            if memory is not None:
                store = memory.store(number, shape.num_kv_heads, like)
            x, normed = add_norm(x, delta, block.attention_norm.weight, eps, quantised=qkv.float8)
            bias = qkv.bias if qkv.float8 else None
            query = rotate_and_store(qkv(normed), cos, sin, rows.slots, *store, shape.num_heads, bias)
            delta = out(attend(query, *store, rows).flatten(1))
            x, normed = add_norm(x, delta, block.mlp_norm.weight, eps, quantised=gate_up.float8)
            del query, delta  # of a probe's columns 16 MB each
            delta = _joined([down(gated(gate_up(part), x.dtype)) for part in _some_at_once(normed, gate_up)])
        return add_norm(x, delta, self.norm.weight, eps)[0]

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self._frequencies  # [N, D/2]
        working = at_least_float32(dtype) if self.shape.rotate_in_float32 else dtype
        return angles.cos().to(working), angles.sin().to(working)


def _some_at_once(x: Tensor | Quantised, product: Product) -> list[Tensor] | list[Quantised]:
    """Few columns as they are; of many, equal parts whose product is not too large."""
    columns = x if isinstance(x, Tensor) else x.values
    count = len(columns)
    parts = -(-count * len(product.weight) // NUMBERS_AT_ONCE)
    size = max(1, -(-count // max(1, parts)))
    if isinstance(x, Tensor):
        return [*torch.split(x, size)]
    return [Quantised(*part) for part in zip(torch.split(x.values, size), torch.split(x.scale, size))]


def _joined(parts: list[Tensor | Raw]) -> Tensor | Raw:
    """Parts of columns as one."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    values, scales, (column_scale, *_) = zip(*parts)
    return Raw(torch.cat(values), torch.cat(scales), column_scale)


def _together(linears: tuple[nn.Module, ...], name: str) -> Tensor:
    """One tensor of the linears' parameters, which become views of it."""
    parameters: list[nn.Parameter] = [getattr(linear, name) for linear in linears]
    if len(parameters) == 1:
        return parameters[0].data
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(p) for p in parameters])):
        parameter.data = part
    return whole
