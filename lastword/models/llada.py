"""LLaDA (Nie et al., 2025): a bidirectional transformer whose logits stand where they predict.

Loads GSAI-ML/LLaDA-8B-Base, LLaDA-8B-Instruct and LLaDA-1.5, and anything in their format.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lastword.canvas.columns import locate
from lastword.memory.memory import RowMemory
from lastword.models.config import Config
from lastword.models.layers import Shape
from lastword.models.native import NativeModel

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

# Switches of the authors' configuration that change the architecture; every published checkpoint
# has these values.
EXPECTED: dict[str, object] = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "alibi": False,
    "rope": True,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "multi_query_attention": None,
    "block_group_size": 1,
}

TURN_END = "<|eot_id|>"


def shape_of(config: Config) -> Shape:
    """The architecture a config.json of this family describes."""
    config.expect("LLaDA", EXPECTED)
    width, heads = config.whole("d_model"), config.whole("n_heads")
    return Shape(
        width=width,
        layers=config.whole("n_layers"),
        heads=heads,
        kv_heads=config.whole("n_kv_heads", heads),
        mlp_width=config.whole("mlp_hidden_size", config.whole("mlp_ratio", 4) * width),
        vocabulary=config.whole("embedding_size", config.whole("vocab_size")),
        rope_theta=config.number("rope_theta", 10000.0),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        positions=config.whole("max_sequence_length"),
        qkv_bias=False,
        tied_head=bool(config.data.get("weight_tying", False)),
        rotate_in_float32=bool(config.data.get("rope_full_precision", True)),
    )


class LLaDA(NativeModel):
    """A MaskPredictor: the logits at a column predict the token at that column."""

    tensors = TENSORS
    turn_end = TURN_END
    shape_of = staticmethod(shape_of)

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S]
        *,
        valid: Tensor | None = None,  # [B, L]
        stale: Tensor | None = None,  # [B, R], sorted
        memory: RowMemory | None = None,
    ) -> Tensor:  # [B, S, V]
        hidden = self.network.hidden(tokens, valid, stale, memory)
        return self.network.logits(hidden, read if stale is None else locate(stale, read))
