"""LLaDA (Nie et al., 2025): a bidirectional transformer whose logits stand where they predict.

Loads GSAI-ML/LLaDA-8B-Base, LLaDA-8B-Instruct and LLaDA-1.5, and anything in their format.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

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

# Inside a block the authors call the gate `ff_proj` and the down matrix `ff_out`; the `ff_out`
# outside the blocks is the vocabulary head.
TENSORS = {
    "embedding.weight": "model.transformer.wte.weight",
    "blocks.{i}.attention_norm.weight": "model.transformer.blocks.{i}.attn_norm.weight",
    "blocks.{i}.attention.query.weight": "model.transformer.blocks.{i}.q_proj.weight",
    "blocks.{i}.attention.key.weight": "model.transformer.blocks.{i}.k_proj.weight",
    "blocks.{i}.attention.value.weight": "model.transformer.blocks.{i}.v_proj.weight",
    "blocks.{i}.attention.out.weight": "model.transformer.blocks.{i}.attn_out.weight",
    "blocks.{i}.mlp_norm.weight": "model.transformer.blocks.{i}.ff_norm.weight",
    "blocks.{i}.mlp.gate.weight": "model.transformer.blocks.{i}.ff_proj.weight",
    "blocks.{i}.mlp.up.weight": "model.transformer.blocks.{i}.up_proj.weight",
    "blocks.{i}.mlp.down.weight": "model.transformer.blocks.{i}.ff_out.weight",
    "norm.weight": "model.transformer.ln_f.weight",
    "head.weight": "model.transformer.ff_out.weight",
}


class LLaDAConfig(FamilyConfig):
    """What LLaDA's config.json says; every published checkpoint has these switches."""

    builder = "LLaDA"

    d_model: Width
    n_layers: Layers
    n_heads: Heads
    n_kv_heads: Heads | None = None  # as many as heads
    mlp_hidden_size: Width | None = None  # mlp_ratio times the width
    mlp_ratio: Annotated[int, Field(ge=1, le=100)] = 4
    vocab_size: Vocabulary
    embedding_size: Vocabulary | None = None  # rows of the embedding, where there are more
    max_sequence_length: Positions
    rope_theta: Theta = 10_000.0
    rms_norm_eps: Epsilon = 1e-5
    weight_tying: bool = False
    rope_full_precision: bool = True

    block_type: Literal["llama"] = "llama"
    activation_type: Literal["silu"] = "silu"
    layer_norm_type: Literal["rms"] = "rms"
    layer_norm_with_affine: Literal[True] = True
    alibi: Literal[False] = False
    rope: Literal[True] = True
    attention_layer_norm: Literal[False] = False
    include_bias: Literal[False] = False
    include_qkv_bias: Literal[False] = False
    input_emb_norm: Literal[False] = False
    scale_logits: Literal[False] = False
    multi_query_attention: Literal[False] = False
    block_group_size: Literal[1] = 1
    clip_qkv: Literal[False] = False

    def shape(self) -> TransformerConfig:
        """The architecture it describes."""
        return TransformerConfig(
            hidden_size=self.d_model,
            num_layers=self.n_layers,
            num_heads=self.n_heads,
            num_kv_heads=self.n_kv_heads or self.n_heads,
            intermediate_size=self.mlp_hidden_size or self.mlp_ratio * self.d_model,
            vocab_size=self.embedding_size or self.vocab_size,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
            max_seq_len=self.max_sequence_length,
            qkv_bias=False,
            tied_head=self.weight_tying,
            rotate_in_float32=self.rope_full_precision,
        )


class LLaDA(NativeModel):
    """A MaskPredictor: the logits at a column predict the token at that column."""

    tensors = TENSORS
    config = LLaDAConfig
    turn_end = "<|eot_id|>"

    def sources(
        self,
        tokens: Tensor,
        read: Tensor,
        valid: Tensor | None,
        stale: Tensor | None,
        memory: RowStorage | None,
    ) -> tuple[Tensor, Tensor | None]:
        return read, stale
