"""Every kernel compiled for a GPU where there is none: what Triton's interpreter takes, its compiler may not.

A launch is answered by a compilation for the arguments it was given.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from lastword.models.kernels import attention, float8, fused, vocabulary
from lastword.models.kernels.attention import PackedRows
from lastword.models.kernels.float8 import UnscaledProduct

MODULES = (attention, float8, fused, vocabulary)
KINDS = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


class Built:
    """In the place of `compiled`."""

    def __init__(self):
        self.names = set()

    def __call__(self, kernel):
        import triton.language as tl

        kernel.__globals__["tl"] = tl
        return Launcher(kernel, self.names)


class Launcher:
    def __init__(self, kernel, names):
        self.kernel, self.names = kernel, names

    def __getitem__(self, grid):
        return self.build

    def build(self, *given, num_warps=4, num_stages=3, **constants):
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        function = triton.jit(self.kernel)
        values = {**dict(zip(function.arg_names, given)), **constants}
        kinds, fixed = {}, {}
        for place, name in enumerate(function.arg_names):
            value = values[name]
            if name in constants or value is None:
                kinds[name], fixed[place,] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                kinds[name] = f"*{KINDS[value.dtype]}"
            else:
                kinds[name] = "fp32" if isinstance(value, float) else "i32"
        options = {"num_warps": num_warps, "num_stages": num_stages}
        made = triton.compile(ASTSource(function, kinds, fixed), target=GPUTarget("cuda", 90, 32), options=options)
        assert made.asm["ptx"]
        self.names.add(self.kernel.__name__)


def raw(rows, columns):
    return UnscaledProduct(torch.zeros(rows, columns, dtype=torch.bfloat16), torch.zeros(rows), torch.zeros(columns))


def launch(dtype, width, mlp, heads, kv_heads, vocabulary_size):
    """Everything a pass launches, in bf16 and in fp8."""
    x, head = torch.zeros(2, width, dtype=dtype), width // heads
    for delta in (None, x, raw(2, width)):
        for quantised in (False, True):
            fused.add_rms_norm(x, delta, x[0], 1e-5, quantize=quantised)
    float8.quantize_rows(x)
    fused.silu_mul(torch.zeros(2, 2 * mlp, dtype=dtype), dtype)
    fused.silu_mul(raw(2, 2 * mlp), dtype)
    store = [torch.zeros(4, kv_heads, head, dtype=dtype) for _ in "kv"]
    columns, slots = (heads + 2 * kv_heads) * head, torch.arange(2)
    for working in {torch.float32, dtype}:
        angles = torch.zeros(2, head // 2, dtype=working)
        for product, bias in (
            (torch.zeros(2, columns, dtype=dtype), None),
            (raw(2, columns), torch.zeros(columns, dtype=dtype)),
        ):
            fused.rotate_and_store(product, angles, angles, slots, *store, heads, bias)
    number = torch.zeros(2).int()
    rows = PackedRows(number, number, number[:1], 33, 1200, slots)
    query = torch.zeros(33, heads, head, dtype=dtype)
    for max_keys in (1200, 40):
        attention.attend(query, *store, replace(rows, max_keys=max_keys))
    attention.attend(query, *store, replace(rows, max_queries=300))
    logits = torch.zeros(2, vocabulary_size, dtype=dtype)
    vocabulary.score_columns(logits, banned=(1,), unscored=(2, 3))


def main():
    built = Built()
    for module in MODULES:
        module.compile_kernel, module.uses_triton = built, lambda x: True
    float8.has_float8 = lambda device: True
    launch(torch.bfloat16, 4096, 12288, 32, 32, 126464)
    launch(torch.bfloat16, 3584, 18944, 28, 4, 152064)
    launch(torch.float16, 96, 200, 6, 2, 601)
    launch(torch.float32, 256, 512, 8, 2, 601)
    print(*sorted(built.names))


if __name__ == "__main__":
    main()
