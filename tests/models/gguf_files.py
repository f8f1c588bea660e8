"""Checkpoint folders as GGUF files, with the keys, names and row order that llama.cpp's converter gives them.

The package gguf encodes all types except Q4_K, Q5_K and Q6_K, whose blocks of 256 weights are encoded here: plain
rounding to the documented layout, not the search for the best scales that llama.cpp does.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from lastword.models.tokenizer import Tokenizer

gguf = pytest.importorskip("gguf", reason="needs the package gguf")
Kind, Type = gguf.GGMLQuantizationType, gguf.GGUFValueType

EMBEDDED = Path(__file__).parents[2] / "lastword" / "embedded"
MODELS = ("tiny-llada-instruct", "tiny-dream-instruct")

# How LLaDA's published tokenizer.json splits text.
LLADA_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

# Modules in the folders of LLaDA and Dream, and in GGUF.
MODULES = {
    "model.transformer.wte": "token_embd",
    "model.transformer.ln_f": "output_norm",
    "model.transformer.ff_out": "output",
    "attn_norm": "attn_norm",
    "attn_out": "attn_output",
    "ff_norm": "ffn_norm",
    "ff_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "ff_out": "ffn_down",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# The keys of config.json, of LLaDA and of Dream, by those of GGUF.
HYPERPARAMETERS = {
    "block_count": ("n_layers", "num_hidden_layers"),
    "context_length": ("max_sequence_length", "max_position_embeddings"),
    "embedding_length": ("d_model", "hidden_size"),
    "feed_forward_length": ("mlp_hidden_size", "intermediate_size"),
    "attention.head_count": ("n_heads", "num_attention_heads"),
    "attention.head_count_kv": ("n_kv_heads", "num_key_value_heads"),
    "vocab_size": ("vocab_size", "vocab_size"),
}


@dataclass
class Content:
    """What a GGUF file holds: typed values, and tensors as arrays of encoded rows."""

    values: dict[str, tuple[Type, object]] = field(default_factory=dict)
    tensors: dict[str, tuple[np.ndarray, Kind]] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, None)
        writer.add_key_value("general.architecture", self.values["general.architecture"][1], Type.STRING)
        for key, (kind, value) in self.values.items():
            if key != "general.architecture":
                writer.add_key_value(key, value, kind)
        for name, (data, kind) in self.tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def content_of(folder: Path, kind: str = "F32", **kinds: str) -> Content:
    """The content of a checkpoint folder; `kinds` are the types of modules (`attn_v="Q6_K"`) other than `kind`."""
    config = json.loads((folder / "config.json").read_text())
    model = config["model_type"].lower()
    content = Content()
    for key, names in HYPERPARAMETERS.items():
        content.values[f"{model}.{key}"] = Type.UINT32, config[names[model == "dream"]]
    head = content.values[f"{model}.embedding_length"][1] // content.values[f"{model}.attention.head_count"][1]
    content.values |= {
        "general.architecture": (Type.STRING, model),
        "general.alignment": (Type.UINT32, 32),
        f"{model}.rope.freq_base": (Type.FLOAT32, config["rope_theta"]),
        f"{model}.rope.dimension_count": (Type.UINT32, head),
        f"{model}.attention.layer_norm_rms_epsilon": (Type.FLOAT32, config["rms_norm_eps"]),
        f"{model}.attention.causal": (Type.BOOL, False),
        "tokenizer.ggml.mask_token_id": (Type.UINT32, config["mask_token_id"]),
        "tokenizer.ggml.eos_token_id": (Type.UINT32, config["eos_token_id"]),
        "tokenizer.ggml.padding_token_id": (Type.UINT32, config["pad_token_id"]),
    }
    if model == "llada":
        content.values["diffusion.shift_logits"] = Type.BOOL, False
    tokenizer = Tokenizer.from_folder(folder)
    content.values |= tokenizer_values(tokenizer, model, config["vocab_size"]) if tokenizer else {}
    for name, weights in load_file(folder / "model.safetensors").items():
        weights = weights.float().numpy()
        module, _, suffix = name.rpartition(".")
        layer = next((int(step) for step in module.split(".") if step.isdigit()), None)
        if layer is not None:
            module = module.partition(f".{layer}.")[2]
        if model == "llada" and module in ("q_proj", "k_proj"):
            weights = interleaved(weights, head)
        module = MODULES[module]
        chosen = "F32" if weights.ndim == 1 else kinds.get(module, kind)
        full = f"{module}.{suffix}" if layer is None else f"blk.{layer}.{module}.{suffix}"
        content.tensors[full] = encoded(weights, chosen), Kind[chosen]
    return content


def interleaved(weights: np.ndarray, head: int) -> np.ndarray:
    """The rows of a projection in the order in which llama.cpp rotates them: the halves of each head alternate."""
    halves = weights.reshape(-1, 2, head // 2, weights.shape[-1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weights.shape)


def tokenizer_values(tokenizer: Tokenizer, model: str, vocab_size: int) -> dict[str, tuple[Type, object]]:
    document = json.loads(tokenizer.core.to_str())
    vocab = {**document["model"]["vocab"], **{entry["content"]: entry["id"] for entry in document["added_tokens"]}}
    special = {entry["content"]: entry["special"] for entry in document["added_tokens"]}
    tokens, types = [f"[PAD{index}]" for index in range(vocab_size)], [5] * vocab_size
    for text, index in vocab.items():
        tokens[index], types[index] = text, {None: 1, True: 3, False: 4}[special.get(text)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    values = {
        "tokenizer.ggml.model": (Type.STRING, "gpt2"),
        "tokenizer.ggml.pre": (Type.STRING, "qwen2" if model == "dream" else "bailingmoe"),
        "tokenizer.ggml.tokens": (Type.ARRAY, tokens),
        "tokenizer.ggml.token_type": (Type.ARRAY, types),
        "tokenizer.ggml.merges": (Type.ARRAY, merges),
        "tokenizer.ggml.bos_token_id": (Type.UINT32, tokenizer.id_of(tokenizer.bos)),
    }
    if tokenizer.chat_template is not None:
        values["tokenizer.chat_template"] = Type.STRING, tokenizer.chat_template
    return values


def folder_like_published(name: str, folder: Path) -> Path:
    """A copy of an embedded model whose tokenizer has the files and splits text as the family's published ones do."""
    shutil.copytree(EMBEDDED / name, folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    if "dream" in name:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps(document["model"]["vocab"]))
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    else:
        (split,) = (step for step in document["pre_tokenizer"]["pretokenizers"] if step["type"] == "Split")
        (to_bytes,) = (step for step in document["pre_tokenizer"]["pretokenizers"] if step["type"] == "ByteLevel")
        split["pattern"], to_bytes["use_regex"] = {"Regex": LLADA_SPLIT}, False
        (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def encoded(weights: np.ndarray, kind: str) -> np.ndarray:
    """The rows of a tensor as blocks of a type."""
    if kind not in K_TYPES:
        return gguf.quantize(weights, Kind[kind])
    blocks, _ = K_TYPES[kind](weights.reshape(-1, 256))
    return blocks.reshape(len(weights), -1)


def _half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values as float16, in bytes and as they are read again."""
    rounded = values.astype(np.float16)
    return rounded[:, None].view(np.uint8), rounded.astype(np.float32)


def _divided(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.divide(numbers, scales, out=np.zeros_like(numbers), where=scales != 0)


def _q4_or_q5(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """8 groups of 32 weights: `scale * number - minimum`, both in 6 bits of the block's scale and minimum."""
    groups = blocks.reshape(-1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    steps = (groups.max(-1) - low) / (2**bits - 1)
    (d_bytes, d), (m_bytes, m) = _half(steps.max(-1) / 63), _half(-low.min(-1) / 63)
    scales = np.clip(np.rint(_divided(steps, d[:, None] + 0 * steps)), 0, 63).astype(np.uint8)
    minima = np.clip(np.rint(_divided(-low, m[:, None] + 0 * low)), 0, 63).astype(np.uint8)
    size = (d[:, None] * scales)[..., None] + 0 * groups
    numbers = np.rint(_divided(groups + (m[:, None] * minima)[..., None], size))
    numbers = np.clip(numbers, 0, 2**bits - 1).astype(np.uint8)
    packed = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        minima[:, :4] | minima[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
    ]
    pairs = numbers.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] & 15 | (pairs[:, :, 1] & 15) << 4).reshape(-1, 128)
    high = []
    if bits == 5:
        fifth = numbers >> 4 << np.arange(8, dtype=np.uint8)[:, None]  # bit i belongs to group i
        high = [np.bitwise_or.reduce(fifth, axis=1)]
    values = size * numbers - (m[:, None] * minima)[..., None]
    return np.concatenate([d_bytes, m_bytes, *packed, *high, nibbles], axis=1), values.reshape(blocks.shape)


def _q6(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """16 groups of 16 weights: `scale * (number - 32)`, scales in 8 bits of the block's scale."""
    groups = blocks.reshape(-1, 16, 16)
    steps = np.abs(groups).max(-1) / 31
    d_bytes, d = _half(steps.max(-1) / 127)
    scales = np.clip(np.rint(_divided(steps, d[:, None] + 0 * steps)), -128, 127).astype(np.int8)
    size = (d[:, None] * scales)[..., None] + 0 * groups
    numbers = (np.clip(np.rint(_divided(groups, size)), -32, 31) + 32).astype(np.uint8)
    quarters = numbers.reshape(-1, 2, 4, 32)  # of each half of the block
    low = np.concatenate(
        [
            quarters[:, :, 0] & 15 | (quarters[:, :, 2] & 15) << 4,
            quarters[:, :, 1] & 15 | (quarters[:, :, 3] & 15) << 4,
        ],
        axis=-1,
    )
    high = np.bitwise_or.reduce(quarters >> 4 << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), d_bytes]
    return np.concatenate(parts, axis=1), (size * (numbers - 32.0)).reshape(blocks.shape)


# Functions of weights [blocks, 256] that return the encoded blocks and the weights that these stand for.
K_TYPES = {"Q4_K": lambda b: _q4_or_q5(b, 4), "Q5_K": lambda b: _q4_or_q5(b, 5), "Q6_K": _q6}
