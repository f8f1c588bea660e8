"""Model architectures: the config.json fields and tensor names of each family of checkpoints.

- LLaDA (Nie et al., 2025): GSAI-ML/LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5.
- Dream (Ye et al., 2025), a bidirectional Qwen2.5: Dream-org/Dream-v0-Base-7B, Dream-v0-Instruct-7B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from lastword.io.schema import PositiveSlots
from lastword.models.config import MAX_VOCAB_SIZE, SpecialIds
from lastword.models.layers import TransformerConfig

LayerCount = Annotated[int, Field(ge=1, le=1_000)]
HeadCount = Annotated[int, Field(ge=1, le=2**12)]
Width = Annotated[int, Field(ge=1, le=2**20)]
VocabSize = Annotated[int, Field(ge=1, le=MAX_VOCAB_SIZE)]
Theta = Annotated[float, Field(ge=1, le=1e15)]  # its powers are computed in float32
Epsilon = Annotated[float, Field(gt=0, lt=1)]


class ModelConfig(SpecialIds):
    """The content of a checkpoint's config.json.

    Fields have the names of `TransformerConfig`; an alias is the name in the file. Switches that would change the
    architecture are `Literal`, so that unsupported values are rejected. Unknown fields are ignored.
    """

    qkv_bias: ClassVar[bool]

    def transformer(self) -> TransformerConfig:
        """Return the `TransformerConfig` with these values."""
        return TransformerConfig(**{field.name: getattr(self, field.name) for field in fields(TransformerConfig)})


class LLaDAConfig(ModelConfig):
    """The content of a LLaDA checkpoint's config.json."""

    architecture = "LLaDA"
    qkv_bias = False

    hidden_size: Width = Field(alias="d_model")
    num_layers: LayerCount = Field(alias="n_layers")
    num_heads: HeadCount = Field(alias="n_heads")
    num_kv_heads: HeadCount | None = Field(None, alias="n_kv_heads")  # None: one per head
    intermediate_size: Width | None = Field(None, alias="mlp_hidden_size")  # None: from mlp_ratio
    mlp_ratio: Annotated[int, Field(ge=1, le=100)] = 4
    vocab_size: VocabSize
    embedding_size: VocabSize | None = None  # rows of the embedding, if they are more than vocab_size
    max_seq_len: PositiveSlots = Field(alias="max_sequence_length")
    rope_theta: Theta = 10_000.0
    norm_eps: Epsilon = Field(1e-5, alias="rms_norm_eps")
    tied_head: bool = Field(False, alias="weight_tying")
    rotate_in_float32: bool = Field(True, alias="rope_full_precision")

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

    @model_validator(mode="after")
    def _fill_in(self) -> LLaDAConfig:
        """Set unset sizes from the other fields, and `vocab_size` to the rows of the embedding."""
        self.num_kv_heads = self.num_kv_heads or self.num_heads
        self.intermediate_size = self.intermediate_size or self.mlp_ratio * self.hidden_size
        self.vocab_size = self.embedding_size or self.vocab_size
        return self


class DreamConfig(ModelConfig):
    """The content of a Dream checkpoint's config.json."""

    architecture = "Dream"
    qkv_bias = True
    rotate_in_float32: ClassVar[bool] = False

    hidden_size: Width
    num_layers: LayerCount = Field(alias="num_hidden_layers")
    num_heads: HeadCount = Field(alias="num_attention_heads")
    num_kv_heads: HeadCount = Field(alias="num_key_value_heads")
    intermediate_size: Width
    vocab_size: VocabSize
    max_seq_len: PositiveSlots = Field(alias="max_position_embeddings")
    rope_theta: Theta
    norm_eps: Epsilon = Field(alias="rms_norm_eps")
    tied_head: bool = Field(False, alias="tie_word_embeddings")

    hidden_act: Literal["silu"] = "silu"
    rope_scaling: Literal[False] = False
    use_sliding_window: Literal[False] = False
    use_mrope: Literal[False] = False


# In a block of LLaDA `ff_proj` is the gate and `ff_out` the down projection; `ff_out` outside the blocks is the output
# head.
LLADA_TENSORS = {
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
DREAM_TENSORS = {
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


@dataclass(frozen=True)
class Architecture:
    """A family of checkpoints with the same config.json and tensor names."""

    name: str
    config: type[ModelConfig]
    tensors: Mapping[str, str]  # parameter names here to those of the checkpoint; {i} stands for the layer
    turn_end: str  # the token that ends a turn, if the tokenizer has it
    shifted_logits: bool = False  # whether the output at a column predicts the token at the next one


# The architectures by the `model_type` of config.json, in lower case.
ARCHITECTURES = {
    "llada": Architecture("LLaDA", LLaDAConfig, LLADA_TENSORS, "<|eot_id|>"),
    "dream": Architecture("Dream", DreamConfig, DREAM_TENSORS, "<|im_end|>", shifted_logits=True),
}
