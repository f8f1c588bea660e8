"""Dream (Ye et al., 2025): Qwen2.5 made bidirectional; its output at a column predicts the next one.

Loads Dream-org/Dream-v0-Base-7B and Dream-v0-Instruct-7B, and anything in their format.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lastword.canvas.columns import column_indices
from lastword.models.config import (
    Epsilon,
    FamilyConfig,
    Heads,
    Layers,
    Positions,
    Theta,
    Vocabulary,
    Width,
)
from lastword.models.layers import TransformerConfig
from lastword.models.native import NativeModel
from lastword.models.storage import RowStorage

TENSORS = {
    "embedding.weight": "model.embed_tokens.weight",
    "blocks.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "blocks.{i}.attention.query.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "blocks.{i}.attention.query.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "blocks.{i}.attention.key.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "blocks.{i}.attention.key.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "blocks.{i}.attention.value.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "blocks.{i}.attention.value.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "blocks.{i}.attention.out.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "blocks.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "blocks.{i}.mlp.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "blocks.{i}.mlp.up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "blocks.{i}.mlp.down.weight": "model.layers.{i}.mlp.down_proj.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


class DreamConfig(FamilyConfig):
    """What Dream's config.json says; every published checkpoint has these switches."""

    builder = "Dream"

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads
    intermediate_size: Width
    vocab_size: Vocabulary
    max_position_embeddings: Positions
    rope_theta: Theta
    rms_norm_eps: Epsilon
    tie_word_embeddings: bool = False

    hidden_act: Literal["silu"] = "silu"
    rope_scaling: Literal[False] = False
    use_sliding_window: Literal[False] = False
    use_mrope: Literal[False] = False

    def shape(self) -> TransformerConfig:
        """The architecture it describes."""
        return TransformerConfig(
            hidden_size=self.hidden_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
            max_seq_len=self.max_position_embeddings,
            qkv_bias=True,
            tied_head=self.tie_word_embeddings,
            rotate_in_float32=False,
        )


class Dream(NativeModel):
    """A MaskPredictor: reading a column means reading the output of the column before it."""

    tensors = TENSORS
    config = DreamConfig
    turn_end = "<|im_end|>"

    def sources(
        self,
        tokens: Tensor,
        read: Tensor,
        valid: Tensor | None,
        stale: Tensor | None,
        memory: RowStorage | None,
    ) -> tuple[Tensor, Tensor | None]:
        # The first column has nothing before it; the authors let it speak for itself.
        source = (read - 1).clamp(min=0)
        if stale is None:
            return source, None
        if memory is not None and memory.uniform:
            return source, _with_column_before(source, valid, stale, memory)
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted = wanted.scatter(1, stale, True).scatter(1, source, True)
        if memory is not None:
            memory.computed = wanted.sum(-1)  # the column before a block is one more
        return source, column_indices(wanted)


def _with_column_before(
    source: Tensor, valid: Tensor | None, stale: Tensor, memory: RowStorage
) -> Tensor:  # [B, R] -> [B, R + 1]
    """The columns and the one before them; a row that does not read it repeats its first instead."""
    first = stale[:, :1]
    before = torch.minimum(source[:, :1], first)
    if valid is not None:
        before = torch.where(valid.gather(1, before), before, first)
    memory.computed = memory.computed + (before < first)[:, 0].to(memory.computed.device)
    return torch.cat((before, stale), 1)
