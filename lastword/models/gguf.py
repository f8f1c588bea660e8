"""GGUF checkpoints, the single files of llama.cpp: hyperparameters, tokenizer and quantised weights.

The header is parsed here, because the reader of the package gguf does not end if a count in a damaged file is too
large. That package converts blocks of quantised weights to float32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from tokenizers import AddedToken, models, normalizers
from torch import Tensor, nn

from lastword.errors import CheckpointError, import_extra
from lastword.io.schema import PositiveSlots
from lastword.models import architectures
from lastword.models.architectures import ARCHITECTURES, Architecture, ModelConfig
from lastword.models.config import Document, EndIds, TokenId
from lastword.models.layers import TransformerConfig
from lastword.models.tokenizer import QWEN2_PIECES, Tokenizer, byte_level, compile_template
from lastword.models.weights import EMBEDDING, HEAD, set_parameter
from lastword.validation import short_repr

MAX_HEADER_BYTES = 24 * 2**20  # published headers have about 6 MB, most of it vocabulary
CHUNK = 2**18  # weights that are converted to float32 at a time; larger chunks are slower

# The types of weights that are read. If dtype is "auto", types without a dtype here load as bfloat16.
WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16}

# The modules of the network by their names in GGUF, without the suffix `.weight` or `.bias`; {i} is the layer.
MODULES = {
    "embedding": "token_embd",
    "blocks.{i}.attention_norm": "blk.{i}.attn_norm",
    "blocks.{i}.attention.query": "blk.{i}.attn_q",
    "blocks.{i}.attention.key": "blk.{i}.attn_k",
    "blocks.{i}.attention.value": "blk.{i}.attn_v",
    "blocks.{i}.attention.out": "blk.{i}.attn_output",
    "blocks.{i}.mlp_norm": "blk.{i}.ffn_norm",
    "blocks.{i}.mlp.gate": "blk.{i}.ffn_gate",
    "blocks.{i}.mlp.up": "blk.{i}.ffn_up",
    "blocks.{i}.mlp.down": "blk.{i}.ffn_down",
    "norm": "output_norm",
    "head": "output",
}

# LLaDA splits text into these pieces before BPE merges; unlike Qwen2 it separates successive newlines.
LLADA_PIECES = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SPECIAL, UNUSED = {3: True, 4: False}, 5  # type 1 is a BPE token, 3 and 4 are added tokens, special or not

# Numbers in metadata, as numpy dtypes, by the type that the file states.
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9

Shapes = Mapping[str, torch.Size]


class GGUFDocument(Document):
    """Metadata of a GGUF file; an alias is a key without the name of the architecture."""

    architecture = "GGUF reader"
    remedy = alternative = "download it again, or convert the authors' checkpoint with llama.cpp, into one file"


class LLaDAMetadata(GGUFDocument, ModelConfig):
    """The hyperparameters and special ids of a LLaDA file."""

    qkv_bias = False
    rotate_in_float32: ClassVar[bool] = True

    hidden_size: architectures.Width = Field(alias="embedding_length")
    num_layers: architectures.LayerCount = Field(alias="block_count")
    num_heads: architectures.HeadCount = Field(alias="attention.head_count")
    num_kv_heads: architectures.HeadCount = Field(alias="attention.head_count_kv")
    intermediate_size: architectures.Width = Field(alias="feed_forward_length")
    vocab_size: architectures.VocabSize
    max_seq_len: PositiveSlots = Field(alias="context_length")
    rope_theta: architectures.Theta = Field(10_000.0, alias="rope.freq_base")
    norm_eps: architectures.Epsilon = Field(alias="attention.layer_norm_rms_epsilon")
    tied_head: bool

    mask_token_id: TokenId | None = Field(alias="tokenizer.ggml.mask_token_id")
    eos_token_id: EndIds = Field(alias="tokenizer.ggml.eos_token_id")
    pad_token_id: TokenId | None = Field(None, alias="tokenizer.ggml.padding_token_id")
    shifted_logits: bool | None = Field(None, alias="diffusion.shift_logits")
    rotary_dim: int | None = Field(None, alias="rope.dimension_count")

    causal: Literal[False] = Field(False, alias="attention.causal")
    rope_scaling: Literal["none"] = Field("none", alias="rope.scaling.type")
    parts: Literal[0, 1] = Field(1, alias="split.count")


class DreamMetadata(LLaDAMetadata):
    """The hyperparameters and special ids of a Dream file."""

    qkv_bias = True
    rotate_in_float32 = False


METADATA: dict[str, type[LLaDAMetadata]] = {"llada": LLaDAMetadata, "dream": DreamMetadata}


class Vocabulary(GGUFDocument):
    """The tokenizer of a file."""

    model: Literal["gpt2"] = Field(alias="tokenizer.ggml.model")
    pieces: Literal["bailingmoe", "bailingmoe2", "llada-moe", "qwen2"] = Field(alias="tokenizer.ggml.pre")
    tokens: list[str] = Field(alias="tokenizer.ggml.tokens")
    types: list[Literal[1, 3, 4, 5]] = Field(alias="tokenizer.ggml.token_type")
    merges: list[str] = Field(alias="tokenizer.ggml.merges")
    bos: TokenId | None = Field(None, alias="tokenizer.ggml.bos_token_id")
    eos: TokenId | None = Field(None, alias="tokenizer.ggml.eos_token_id")
    chat_template: str | None = Field(None, alias="tokenizer.chat_template")

    def tokenizer(self, vocab_size: int) -> Tokenizer:
        """Return the tokenizer; raise various exceptions if its tables do not fit."""
        sizes = [len(self.tokens), len({*self.tokens}), len(self.types)]
        if {*sizes} != {vocab_size}:
            raise ValueError("{} tokens, {} different, {} types, {} rows of embedding".format(*sizes, vocab_size))
        ids = {text: index for index, text in enumerate(self.tokens) if self.types[index] != UNUSED}
        merges: list[Any] = [tuple(merge.split(" ")) for merge in self.merges]
        is_qwen2 = self.pieces == "qwen2"
        core = byte_level(models.BPE(ids, merges), QWEN2_PIECES if is_qwen2 else LLADA_PIECES)
        if is_qwen2:
            core.normalizer = normalizers.NFC()
        added = [(text, SPECIAL[kind]) for text, kind in zip(self.tokens, self.types) if kind in SPECIAL]
        core.add_tokens([AddedToken(text, special=special, normalized=False) for text, special in added])
        compile_template(self.chat_template or "")  # raise for a broken template now, not in a chat
        bos, eos = (None if index is None else self.tokens[index] for index in (self.bos, self.eos))
        return Tokenizer(core, bos, eos, self.chat_template)


@dataclass(frozen=True)
class StoredTensor:
    """The description of a tensor: its shape as in torch, its type, and its place after the header."""

    shape: list[int]
    type: str
    offset: int


class Header:
    """The header of a file, read from left to right; ValueError if it is malformed or ends too early."""

    def __init__(self, data: bytes, types: Mapping[int, str]) -> None:
        self.data, self.end, self.types = data, 0, types

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.end:
            raise ValueError(f"a value of {count} bytes ends after the {len(self.data)} bytes that its header may have")
        self.end += count
        return self.data[self.end - count : self.end]

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        return self.take(self.int64()).decode()

    def value(self) -> Any:
        """Return a value of metadata: a number, a text, or a list of either."""
        kind = self.int32()
        is_array = kind == ARRAY
        kind, count = (self.int32(), self.int64()) if is_array else (kind, 1)
        if kind == STRING:
            return [self.text() for _ in range(count)] if is_array else self.text()
        if kind not in NUMBERS:
            raise ValueError(f"a value{' in an array' if is_array else ''} has the type {kind}, which is not supported")
        dtype = np.dtype(NUMBERS[kind])
        numbers = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return numbers if is_array else numbers[0]

    def metadata(self, count: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(count):
            key = self.text()
            if key in values:
                raise ValueError(f"it has the key {short_repr(key)} twice")
            values[key] = self.value()
        return values

    def tensors(self, count: int) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for _ in range(count):
            name, dimensions = self.text(), self.int32()
            if name in tensors or not 1 <= dimensions <= 4:
                raise ValueError(f"tensor {short_repr(name)} is listed twice, or has {dimensions} dimensions")
            shape, kind = [self.int64() for _ in range(dimensions)], self.int32()
            tensors[name] = StoredTensor(shape[::-1], self.types.get(kind, str(kind)), self.int64())
        return tensors


class GGUFFile:
    """A GGUF checkpoint: its hyperparameters and its tokenizer, and weights that are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = import_extra("gguf", "gguf", "loading a .gguf file")
        types = {kind.value: kind.name for kind in self._library.GGMLQuantizationType}
        self._blocks = {types[kind]: size for kind, size in self._library.GGML_QUANT_SIZES.items()}
        try:
            self._size = os.path.getsize(path)
            with path.open("rb") as file:
                header = Header(file.read(MAX_HEADER_BYTES), types)
            magic, version = header.take(4), header.int32()
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError(f"it begins with {magic!r} and version {version}, not with b'GGUF' and version 2 or 3")
            tensor_count, value_count = header.int64(), header.int64()
            self._metadata = header.metadata(value_count)
            self._tensors = header.tensors(tensor_count)
            alignment = self._metadata.get("general.alignment", 32)
            if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
                raise ValueError(f"general.alignment is {short_repr(alignment)}, not a power of two")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as GGUF ({error}); download it again") from error
        self._data_start = math.ceil(header.end / alignment) * alignment
        self.model_config = self._read_config()
        self._architecture, _, self._config = self.model_config
        self._names = self._match_names()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the embedding is stored, or bfloat16 if it is quantised."""
        return STORED_DTYPES.get(self._tensors[self._names[EMBEDDING]].type, torch.bfloat16)

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or None if the file has none."""
        if self._metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
            return None
        vocabulary = Vocabulary.parse(self._metadata, self.path)
        try:
            return vocabulary.tokenizer(self._config.vocab_size)
        except Exception as error:  # the Rust library raises plain Exception
            reason = f"cannot be used ({type(error).__name__}: {error})"
            raise CheckpointError(f"the tokenizer in {self.path} {reason}; {GGUFDocument.remedy}") from error

    def load_into(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Fill a module that was built on the meta device; its parameters will not require gradients."""
        shapes = {name: parameter.shape for name, parameter in module.named_parameters()}  # excludes a tied head
        for name, tensor in self.tensors(shapes, device, dtype):
            owner, _, leaf = name.rpartition(".")
            set_parameter(module.get_submodule(owner), leaf, tensor)
        if self._config.tied_head:
            set_parameter(module.get_submodule("head"), "weight", module.get_parameter(EMBEDDING))
        module.requires_grad_(False)

    def tensors(self, shapes: Shapes, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Check all tensors against the parameters' `shapes`, then read and yield them by name, layer by layer."""
        end = self._data_start
        for ours, name in sorted(self._names.items(), key=lambda names: self._tensors[names[1]].offset):
            end = self._check_tensor(name, list(shapes[ours]), end)
        with self.path.open("rb", buffering=0) as file:
            for ours, name in self._names.items():
                yield ours, self._read_tensor(file, ours, name, device, dtype)

    def _read_config(self) -> tuple[Architecture, ModelConfig, TransformerConfig]:
        kind, embedding = self._metadata.get("general.architecture"), self._tensors.get("token_embd.weight")
        if not isinstance(kind, str) or kind not in METADATA:
            raise CheckpointError(
                f"{self.path} has general.architecture={short_repr(kind)}; supported are {', '.join(METADATA)}: wrap "
                "any other masked model with lastword.Adapter"
            )
        data = {key.removeprefix(f"{kind}."): value for key, value in self._metadata.items()}
        data.setdefault("attention.head_count_kv", data.get("attention.head_count"))
        data.setdefault("vocab_size", embedding.shape[0] if embedding else None)
        config = METADATA[kind].parse({**data, "tied_head": "output.weight" not in self._tensors}, self.path)
        architecture, shifted = ARCHITECTURES[kind], config.shifted_logits
        architecture = architecture if shifted is None else replace(architecture, shifted_logits=shifted)
        try:
            transformer = config.transformer()
            if config.rotary_dim not in (None, transformer.head_dim):
                raise CheckpointError(f"rope.dimension_count is {config.rotary_dim}, not {transformer.head_dim}")
        except CheckpointError as error:
            raise CheckpointError(f"{self.path} cannot be built: {error}; {config.remedy}") from error
        return architecture, config, transformer

    def _match_names(self) -> dict[str, str]:
        """Return the tensor names by parameter name, layer by layer; CheckpointError unless the file has just these."""
        tensors = {ours: MODULES[Path(ours).stem] + Path(ours).suffix for ours in self._architecture.tensors}
        once = [(ours, 0) for ours in tensors if "{i}" not in ours and not (self._config.tied_head and ours == HEAD)]
        layers = [(ours, i) for i in range(self._config.num_layers) for ours in tensors if "{i}" in ours]
        names = {ours.format(i=i): tensors[ours].format(i=i) for ours, i in once + layers}
        missing, extra = {*names.values()} - self._tensors.keys(), self._tensors.keys() - {*names.values()}
        if missing or extra:
            raise CheckpointError(
                f"{self.path} lacks {len(missing)} tensors of {self._architecture.name} and has {len(extra)} others "
                f"(first: {short_repr(min(missing or extra))}); {GGUFDocument.remedy}"
            )
        return names

    def _check_tensor(self, name: str, shape: list[int], start: int) -> int:
        """Return the end of a tensor in the file; CheckpointError unless it begins at `start` or later and is whole."""
        tensor = self._tensors[name]
        block, block_bytes = self._blocks.get(tensor.type, (1, 0))
        first = self._data_start + tensor.offset
        end = first + math.prod(shape) // block * block_bytes
        if tensor.type not in WEIGHT_TYPES:
            problem = f"has the type {tensor.type}, and weights are read as one of {', '.join(WEIGHT_TYPES)}"
        elif tensor.shape != shape or shape[-1] % block:
            problem = f"has shape {short_repr(tensor.shape)} and blocks of {block}; the metadata requires {shape}"
        elif not start <= first <= end <= self._size:
            problem = f"occupies bytes {first} to {end}, and it must lie between bytes {start} and {self._size}"
        else:
            return end
        raise CheckpointError(f"tensor {name} in {self.path.name} {problem}; {GGUFDocument.remedy}")

    def _read_tensor(self, file: FileIO, ours: str, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a tensor in `dtype`, converted in chunks of rows; CheckpointError if its numbers are not finite."""
        stored, columns = self._tensors[name], self._tensors[name].shape[-1]
        kind, (block, block_bytes) = self._library.GGMLQuantizationType[stored.type], self._blocks[stored.type]
        tensor = torch.empty(stored.shape, dtype=dtype, device=device).view(-1, columns)
        order = torch.arange(len(tensor), device=device)  # row of the parameter for each stored row
        if self._architecture.name == "LLaDA" and ours.endswith(("query.weight", "key.weight")):
            # llama.cpp rotates adjacent numbers of a head, the authors' code numbers that are half a head apart.
            order = order.view(-1, 2, self._config.head_dim // 2).transpose(1, 2).flatten()
        file.seek(self._data_start + stored.offset)
        for rows in torch.split(order, max(1, CHUNK // columns)):
            data = np.empty((len(rows), columns // block * block_bytes), np.uint8)
            is_whole = file.readinto(data.data) == data.size
            with np.errstate(all="ignore"):  # NaN and Inf raise below
                part = torch.from_numpy(self._library.quants.dequantize(data, kind)).to(device, dtype)
            if not is_whole or not torch.stack(part.aminmax()).isfinite().all():
                problem = f"ends early, or holds NaN or Inf in {dtype}; load it in another dtype, or download it again"
                raise CheckpointError(f"tensor {name} in {self.path.name} {problem}")
            tensor[rows] = part
        return tensor.view(stored.shape)
