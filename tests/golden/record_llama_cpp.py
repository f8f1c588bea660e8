"""Record llama.cpp's logits of the embedded models as GGUF files: `python -m tests.golden.record_llama_cpp`.

It needs the package llama-cpp-python, whose binding it calls on one thread, without flash attention and without a
causal mask. See README.md beside this file.
"""

from __future__ import annotations

import ctypes
import lzma
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

import lastword
from lastword.models.gguf import WEIGHT_TYPES
from lastword.models.weights import fingerprint
from tests.models.gguf_files import EMBEDDED, MODELS, content_of

MASKS = 6
RECORDING = Path(__file__).parent / "llama_cpp_logits.safetensors.xz"


def record(path: Path, tokens: list[int]) -> np.ndarray:
    """Return llama.cpp's logits [tokens, vocabulary] of a GGUF file."""
    llama_cpp = import_module("llama_cpp.llama_cpp")  # not a dependency of the tests

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, settings)
    llama_cpp.llama_set_causal_attn(context, False)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for column, token in enumerate(tokens):
        batch.token[column], batch.pos[column], batch.logits[column] = token, column, 1
        batch.n_seq_id[column], batch.seq_id[column][0] = 1, 0
    assert llama_cpp.llama_decode(context, batch) == 0
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    logits = ctypes.cast(llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(logits, (len(tokens), size)).copy()


def main() -> None:
    tensors: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            model = lastword.load(name, device="cpu", dtype="float32")
            tokens = [*model.tokenizer.encode("Problem: 12 + 30 = ?"), *[model.ids.mask] * MASKS]
            tensors[f"{name}.tokens"] = torch.tensor(tokens)
            tensors[f"{name}.fingerprint"] = torch.tensor([*fingerprint(model).encode()], dtype=torch.uint8)
            for kind in WEIGHT_TYPES:
                file = content_of(EMBEDDED / name, kind).write(Path(folder) / f"{name}-{kind}.gguf")
                logits = torch.from_numpy(record(file, tokens))
                # The masked columns show the error of a quantised file; half precision is enough for it.
                tensors[f"{name}.{kind}"] = logits if kind == "F32" else logits[-MASKS::2].half()
    RECORDING.write_bytes(lzma.compress(save(tensors), preset=9))


if __name__ == "__main__":
    main()
