"""Export of a trained network in the authors' checkpoint format: their tensor names, config fields and bfloat16."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lastword.models.architectures import ARCHITECTURES
from lastword.models.layers import BidirectionalTransformer, TransformerConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def llada_config(shape: TransformerConfig, end: int, mask: int) -> dict[str, Any]:
    """Return the fields of LLaDA's config.json that describe the model."""
    return {
        "activation_type": "silu",
        "alibi": False,
        "architectures": ["LLaDAModelLM"],
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": shape.hidden_size,
        "embedding_size": shape.vocab_size,
        "eos_token_id": end,
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": mask,
        "max_sequence_length": shape.max_seq_len,
        "mlp_hidden_size": shape.intermediate_size,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": shape.num_heads,
        "n_kv_heads": shape.num_kv_heads,
        "n_layers": shape.num_layers,
        "pad_token_id": end,
        "rms_norm_eps": shape.norm_eps,
        "rope": True,
        "rope_full_precision": shape.rotate_in_float32,
        "rope_theta": shape.rope_theta,
        "scale_logits": False,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "vocab_size": shape.vocab_size,
        "weight_tying": shape.tied_head,
    }


def dream_config(shape: TransformerConfig, end: int, mask: int) -> dict[str, Any]:
    """Return the fields of Dream's config.json that describe the model."""
    return {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "mask_token_id": mask,
        "max_position_embeddings": shape.max_seq_len,
        "model_type": "Dream",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "pad_token_id": end,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied_head,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


CONFIGS = {"llada": llada_config, "dream": dream_config}
CANVAS = 256  # slots of the largest canvas in training; the models are not trained on longer ones
GENERATION: dict[str, dict[str, Any]] = {
    "llada": {"max_new_tokens": CANVAS},
    "dream": {
        "alg": "origin", "alg_temp": None, "eps": 0.001, "mask_token_id": None, "steps": 512,
        "max_new_tokens": CANVAS,
    },
}  # fmt: skip


def export(
    network: BidirectionalTransformer, family: str, folder: Path, tokenizer: Path, *, start: int, end: int, mask: int
) -> None:
    """Write a checkpoint folder that `lastword.load` and the authors' code can read."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", CONFIGS[family](network.config, end, mask))
    common = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end, "single_turn": True}
    _write(folder / "generation_config.json", common | GENERATION[family])
    names = checkpoint_names(ARCHITECTURES[family].tensors, network.config.num_layers)
    tensors = {
        names[parameter]: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for parameter, tensor in network.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes files readable by their owner only
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, folder / name)


def checkpoint_names(tensors: Mapping[str, str], layers: int) -> dict[str, str]:
    """Return the authors' tensor names by the parameter names of this package, for every layer."""
    return {
        parameter.format(i=layer): tensor.format(i=layer)
        for parameter, tensor in tensors.items()
        for layer in range(layers if "{i}" in parameter else 1)
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
