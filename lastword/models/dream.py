"""Dream (Ye et al., 2025): Qwen2.5 made bidirectional; its output at a column predicts the next one.

Loads Dream-org/Dream-v0-Base-7B and Dream-v0-Instruct-7B, and anything in their format.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lastword.canvas.columns import columns_of, locate
from lastword.memory.memory import RowMemory
from lastword.models.config import Config
from lastword.models.layers import Shape
from lastword.models.native import NativeModel

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

EXPECTED: dict[str, object] = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "use_sliding_window": False,
    "use_mrope": False,
}

TURN_END = "<|im_end|>"


def shape_of(config: Config) -> Shape:
    """The architecture a config.json of this family describes."""
    config.expect("Dream", EXPECTED)
    return Shape(
        width=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        heads=config.whole("num_attention_heads"),
        kv_heads=config.whole("num_key_value_heads"),
        mlp_width=config.whole("intermediate_size"),
        vocabulary=config.whole("vocab_size"),
        rope_theta=config.number("rope_theta"),
        norm_eps=config.number("rms_norm_eps"),
        positions=config.whole("max_position_embeddings"),
        qkv_bias=True,
        tied_head=bool(config.data.get("tie_word_embeddings", False)),
        rotate_in_float32=False,
    )


class Dream(NativeModel):
    """A MaskPredictor: reading a column means reading the output of the column before it."""

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
        # The first column has nothing before it; the authors let it speak for itself.
        source = (read - 1).clamp(min=0)
        if stale is None:
            return self.network.logits(self.network.hidden(tokens, valid, None, memory), source)
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted = wanted.scatter(1, stale, True).scatter(1, source, True)
        if memory is not None:
            memory.computed = wanted.sum(-1)  # the column before a block is one more
        widened = columns_of(wanted)
        hidden = self.network.hidden(tokens, valid, widened, memory)
        return self.network.logits(hidden, locate(widened, source))
